#include "models/compiler.h"
#include "base/error.h"
#include "ops/attention/attention.h"
#include "ops/moe/moe.h"
#include "ops/norm/add_norm.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "ops/split/split.h"

namespace weir {

bool Compiler::products_round(int64_t cols) const {
  constexpr int64_t kAligned = 8;  // elements: rows of BF16 begin at multiples of 16 bytes
  return c_.device().is_cuda() && c_.options().activations != Activations::kF32 && cols % kAligned == 0;
}

bool Compiler::experts_round(const MoeFfn& moe) const {
  return moe_takes_bf16(c_.device(), moe.experts, c_.options().activations);
}

Buffer Compiler::product_buffer(std::string_view key, Buffer exact) {
  return products_round(exact.cols) ? c_.bf16_buffer(key, exact.cols) : exact;
}

Buffer Compiler::product_logit_buffer(std::string_view key, Buffer exact) {
  return products_round(exact.cols) ? c_.bf16_logit_buffer(key, exact.cols) : exact;
}

Buffer Compiler::normed_buffer() {
  bool round = products_round(spec_.hidden);
  for (const LayerSpec& layer : spec_.layers) {
    const auto* parallel = std::get_if<ParallelFfn>(&layer.ffn);
    const MoeFfn* moe = parallel != nullptr ? &parallel->moe : std::get_if<MoeFfn>(&layer.ffn);
    if (moe != nullptr && !moe->latent) round = round && experts_round(*moe);
  }
  return round ? c_.bf16_buffer("normed", spec_.hidden) : c_.buffer("normed", spec_.hidden);
}

LinearArgs Compiler::linear_args(const Linear& part, Buffer x, Buffer y) const {
  return {.weight = part.weight,
          .bias = part.bias.empty() ? nullptr : part.bias.data(),
          .x = x.data,
          .x_stride = x.cols,
          .y = y.data,
          .y_stride = y.cols,
          .x_type = x.type,
          .y_type = y.type,
          .activations = c_.options().activations,
          .max_rows = c_.options().max_rows};
}

void Compiler::linear(const std::string& name, const Linear& part, Buffer x, Buffer y) {
  c_.add(bind_linear(c_.device(), name, linear_args(part, x, y)), y);
}

void Compiler::linears(const std::string& name, const std::vector<Product>& parts, Buffer x) {
  std::vector<LinearArgs> args;
  for (const Product& p : parts) {
    if (p.part == nullptr || p.part->weight.empty()) continue;
    const Buffer from = p.x.value_or(x);
    if (!c_.device().is_cuda()) linear(name + p.name, *p.part, from, p.y);
    args.push_back(linear_args(*p.part, from, p.y));
  }
  if (c_.device().is_cuda()) c_.add(bind_linears(c_.device(), name + parts.front().name, args), parts.front().y);
}

void Compiler::norm(const std::string& name, const FloatVector& weight, Buffer x, Buffer y, RowSet rows) {
  rms(name, weight, static_cast<int64_t>(weight.size()), spec_.eps, x, y, rows);
}

void Compiler::rms(const std::string& name, const FloatVector& weight, int64_t size, float eps, Buffer x, Buffer y,
                   RowSet rows, int64_t groups) {
  c_.add(bind_norm(c_.device(), name,
                   {.kind = NormKind::kRms,
                    .groups = groups,
                    .size = size,
                    .eps = eps,
                    .weight = weight.data(),
                    .x = x.data,
                    .x_stride = x.cols,
                    .y = y.data,
                    .y_stride = y.cols,
                    .y_type = y.type,
                    .rows = rows}),
         y);
}

void Compiler::plain_rms(const std::string& name, int64_t groups, int64_t size, Buffer x, Buffer y) {
  c_.add(bind_norm(c_.device(), name,
                   {.kind = NormKind::kRmsPlain,
                    .groups = groups,
                    .size = size,
                    .eps = spec_.eps,
                    .x = x.data,
                    .x_stride = x.cols,
                    .y = y.data,
                    .y_stride = y.cols}),
         y);
}

void Compiler::elementwise(const std::string& name, ElementwiseKind kind, Buffer g, Buffer u, Buffer y) {
  c_.add(bind_elementwise(c_.device(), name,
                          {.kind = kind,
                           .beta = spec_.act.beta,
                           .linear_beta = spec_.act.linear_beta,
                           .size = y.cols,
                           .g = g.data,
                           .g_stride = g.cols,
                           .u = u.data,
                           .u_stride = u.cols,
                           .y = y.data,
                           .y_stride = y.cols,
                           .y_type = y.type}),
         y);
}
void Compiler::add(const std::string& name, Buffer a, Buffer b, Buffer y) {
  elementwise(name, ElementwiseKind::kAdd, a, b, y);
}

void Compiler::add_scaled(const std::string& name, Buffer a, Buffer b, float factor, Buffer y) {
  c_.add(bind_elementwise(c_.device(), name,
                          {.kind = ElementwiseKind::kAddScaled,
                           .beta = factor,
                           .size = y.cols,
                           .g = a.data,
                           .g_stride = a.cols,
                           .u = b.data,
                           .u_stride = b.cols,
                           .y = y.data,
                           .y_stride = y.cols}),
         y);
}

SumNorm Compiler::sum_norm(float factor, const FloatVector& weight, Buffer stream, Buffer out, Buffer x) const {
  return {.add = {.kind = factor == 1 ? ElementwiseKind::kAdd : ElementwiseKind::kAddScaled,
                  .beta = factor,
                  .size = stream.cols,
                  .g = stream.data,
                  .g_stride = stream.cols,
                  .u = out.data,
                  .u_stride = out.cols,
                  .y = stream.data,
                  .y_stride = stream.cols},
          .norm = {.kind = NormKind::kRms,
                   .size = static_cast<int64_t>(weight.size()),
                   .eps = spec_.eps,
                   .weight = weight.data(),
                   .x = stream.data,
                   .x_stride = stream.cols,
                   .y = x.data,
                   .y_stride = x.cols,
                   .y_type = x.type}};
}

void Compiler::add_and_norm(const std::string& add_name, float factor, const std::string& norm_name,
                            const FloatVector& weight, Buffer stream, Buffer out, Buffer x) {
  if (!c_.device().is_cuda() || weight.empty()) {
    factor == 1 ? add(add_name, stream, out, stream) : add_scaled(add_name, stream, out, factor, stream);
    if (!weight.empty()) norm(norm_name, weight, stream, x);
    return;
  }
  const SumNorm both = sum_norm(factor, weight, stream, out, x);
  c_.add(bind_add_norm(c_.device(), norm_name, both.add, both.norm), x);
}

void Compiler::rope_angles() {
  for (size_t i = 0; i < spec_.ropes.size(); ++i) {
    const RopeSpec& rope = spec_.ropes[i];
    const auto pairs = static_cast<int64_t>(rope.inv_freq.size());
    const Angles angles{.cos = c_.buffer(concat("rope.", i, ".cos"), pairs),
                        .sin = c_.buffer(concat("rope.", i, ".sin"), pairs)};
    c_.add(bind_rope_angles(c_.device(), concat("rope.", i, ".angles"),
                            {.inv_freq = rope.inv_freq.data(),
                             .pairs = pairs,
                             .attention_factor = rope.attention_factor,
                             .cos = angles.cos.data,
                             .sin = angles.sin.data}),
           angles.cos);
    angles_.push_back(angles);
  }
}

void Compiler::rotate(const std::string& name, int rope, int64_t heads, int64_t head_dim, Buffer x, int64_t first) {
  const RopeSpec& spec = spec_.ropes[static_cast<size_t>(rope)];
  const Angles& angles = angles_[static_cast<size_t>(rope)];
  c_.add(bind_rope(c_.device(), name,
                   {.pairing = spec.pairing,
                    .heads = heads,
                    .head_stride = head_dim,
                    .pairs = static_cast<int64_t>(spec.inv_freq.size()),
                    .cos = angles.cos.data,
                    .sin = angles.sin.data,
                    .x = x.data + first,
                    .x_stride = x.cols}),
         x);
}

void Compiler::kv_write(const std::string& name, PageField field, int64_t to, Buffer x) {
  c_.add(bind_kv_write(c_.device(), name,
                       {.dtype = kv(), .field = field, .to = to, .size = x.cols, .x = x.data, .x_stride = x.cols}),
         x);
}

void Compiler::split(const std::string& name, int64_t groups, std::vector<Part> parts, Buffer x) {
  SplitArgs args{.groups = groups, .parts = {}, .x = x.data, .x_stride = x.cols};
  for (const Part& part : parts) args.parts.push_back({part.size, part.y.data, part.y.cols});
  c_.add(bind_split(c_.device(), name, std::move(args)), parts.front().y);
}

void Compiler::l2(const std::string& name, int64_t heads, int64_t dim, float scale, Buffer x) {
  c_.add(bind_norm(c_.device(), name,
                   {.kind = NormKind::kL2,
                    .groups = heads,
                    .size = dim,
                    .eps = kL2Eps,
                    .scale = scale,
                    .x = x.data,
                    .x_stride = x.cols,
                    .y = x.data,
                    .y_stride = x.cols}),
         x);
}

}  // namespace weir
