// Feed-forward parts: dense, and routed experts.
#include "models/compiler.h"
#include "ops/moe/moe.h"
#include "ops/router/router.h"

namespace weir {

void Compiler::feed(const std::string& name, const DenseFfn& f, Buffer x, Buffer out) {
  linears(name, wide_products(f), x);
  narrow(name, f, out);
}

std::vector<Compiler::Product> Compiler::wide_products(const DenseFfn& f, const std::string& prefix) {
  return {{prefix + "gate", &f.gate, c_.buffer("ffn.gate", f.inter)},
          {prefix + "up", &f.up, c_.buffer("ffn.up", f.inter)}};
}

void Compiler::narrow(const std::string& name, const DenseFfn& f, Buffer out) {
  const Buffer gate = c_.buffer("ffn.gate", f.inter);
  const Buffer hidden = product_buffer("ffn.hidden", gate);
  elementwise(name + "act", spec_.act.kind, gate, c_.buffer("ffn.up", f.inter), hidden);
  linear(name + "down", f.down, hidden, out);
}

Buffer Compiler::latent_buffer(const MoeFfn& f) {
  const int64_t cols = f.latent->down.weight.out;
  return products_round(cols) && experts_round(f) ? c_.bf16_buffer("moe.latent", cols) : c_.buffer("moe.latent", cols);
}

void Compiler::moe(const std::string& name, const MoeFfn& f, Buffer router_input, Buffer x, Buffer out,
                   const std::optional<SumNorm>& follows) {
  const auto experts = static_cast<int64_t>(f.experts.size());
  const Buffer logits = c_.buffer("moe.router", experts);
  const Buffer weights = c_.buffer("moe.weights", f.top_k);
  int32_t* ids = c_.int_buffer("moe.ids", f.top_k);
  const Buffer input = f.latent ? latent_buffer(f) : x;
  const Buffer shared_gate = f.shared_gate ? c_.buffer("moe.shared_gate", 1) : Buffer{};
  // What reads x, in one op where the router does too.
  std::vector<Product> products;
  if (f.latent) products.push_back({"latent_down", &f.latent->down, input});
  if (f.shared) {
    for (const Product& product : wide_products(*f.shared, "shared.")) products.push_back(product);
  }
  if (f.shared_gate) products.push_back({"shared.gate_row", &*f.shared_gate, shared_gate});
  if (router_input.data == x.data) {
    products.insert(products.begin(), {"router", &f.router, logits});
  } else {
    linear(name + "router", f.router, router_input, logits);
  }
  if (!products.empty()) linears(name, products, x);
  c_.add(bind_router(c_.device(), name + "choose",
                     {.score = f.score,
                      .experts = experts,
                      .top_k = f.top_k,
                      .groups = f.groups,
                      .topk_group = f.topk_group,
                      .renormalize = f.renormalize,
                      .scaling_factor = f.scaling_factor,
                      .bias = f.router_bias.empty() ? nullptr : f.router_bias.data(),
                      .expert_scale = f.expert_scale.empty() ? nullptr : f.expert_scale.data(),
                      .logits = logits.data,
                      .logits_stride = logits.cols,
                      .ids = ids,
                      .weights = weights.data}),
         weights);
  const Buffer routed = f.latent ? c_.buffer("moe.latent_out", input.cols) : out;
  const Buffer shared = f.shared ? c_.buffer("moe.shared", spec_.hidden) : Buffer{};
  if (f.shared) narrow(name + "shared.", *f.shared, shared);
  if (f.shared_gate) {
    elementwise(name + "shared.gate_row.apply", ElementwiseKind::kGateRow, shared, shared_gate, shared);
  }
  const Buffer addend = f.latent ? Buffer{} : shared;  // the latents' sum goes through a product first
  c_.add(bind_moe(c_.device(), name + "experts",
                  {.experts = f.experts,
                   .in = input.cols,
                   .inter = f.inter,
                   .out = routed.cols,
                   .top_k = f.top_k,
                   .act = spec_.act,
                   .gate_bias = f.gate_bias.empty() ? nullptr : f.gate_bias.data(),
                   .up_bias = f.up_bias.empty() ? nullptr : f.up_bias.data(),
                   .down_bias = f.down_bias.empty() ? nullptr : f.down_bias.data(),
                   .x = input.data,
                   .x_stride = input.cols,
                   .x_type = input.type,
                   .ids = ids,
                   .weights = weights.data,
                   .routed_before = f.shared.has_value(),
                   .addend = addend.data,
                   .addend_stride = addend.cols,
                   .y = routed.data,
                   .y_stride = routed.cols,
                   .follows = follows,
                   .max_rows = c_.options().max_rows,
                   .workspace = moe_workspace_,
                   .activations = c_.options().activations}),
         follows ? x : routed);
  if (f.latent) {
    const bool norms = !f.latent->norm.empty();
    const Buffer normed = norms ? product_buffer("moe.latent_normed", routed) : routed;
    if (norms) norm(name + "latent_norm", f.latent->norm, routed, normed);
    linear(name + "latent_up", f.latent->up, normed, out);
  }
  if (f.shared && f.latent) add(name + "shared.add", out, shared, out);
}

void Compiler::feed(const std::string& name, const ParallelFfn& f, Buffer stream, Buffer x, Buffer out) {
  feed(name + "dense.", f.dense, x, out);
  norm(name + "dense_norm", f.dense_norm, out, out);
  const Buffer router_input =
      product_buffer("parallel.router_input.rounded", c_.buffer("parallel.router_input", spec_.hidden));
  const Buffer routed = c_.buffer("parallel.routed", spec_.hidden);
  norm(name + "router_norm", f.router_norm, stream, router_input);
  norm(name + "moe_input_norm", f.moe_input_norm, stream, x);
  moe(name + "moe.", f.moe, router_input, x, routed);
  norm(name + "moe_norm", f.moe_norm, routed, routed);
  add(name + "moe.add", out, routed, out);
}

}  // namespace weir
