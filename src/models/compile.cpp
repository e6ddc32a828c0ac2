// The stack of layers: embedding, residual schemes, head.
#include <utility>

#include "base/error.h"
#include "models/compiler.h"
#include "ops/attn_residual/residual_norm.h"
#include "ops/embedding/embedding.h"

namespace weir {

void Compiler::stack() {
  Buffer stream = c_.buffer("stream.0", spec_.hidden);
  c_.add(bind_embedding(
             c_.device(), "embedding",
             {.table = spec_.embedding, .scale = spec_.embedding_scale, .y = stream.data, .y_stride = stream.cols}),
         stream);
  if (spec_.per_layer) per_layer_vectors(stream);
  rope_angles();
  stream = spec_.residual_block > 0 ? residual_stack(stream) : plain_stack(stream);
  head(stream);
}

Buffer Compiler::plain_stack(Buffer stream) {
  const Buffer x = normed_buffer();
  const Buffer out = c_.buffer("sublayer", spec_.hidden);
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    const LayerSpec& layer = spec_.layers[i];
    const std::string name = concat("layers.", i, ".");
    if (i == 0) norm(name + "input_norm", layer.input_norm, stream, x);
    mixer(name, layer, x, out);
    if (!layer.post_mixer_norm.empty()) norm(name + "post_mixer_norm", layer.post_mixer_norm, out, out);
    add_and_norm(name + "mixer.add", 1, name + "ffn_norm", layer.ffn_norm, stream, out, x);
    const bool last = i + 1 == spec_.layers.size();
    static const FloatVector kNone;
    const FloatVector& next = last ? kNone : spec_.layers[i + 1].input_norm;
    const std::string next_name = concat("layers.", i + 1, ".input_norm");
    const auto* experts = std::get_if<MoeFfn>(&layer.ffn);
    if (c_.device().is_cuda() && experts != nullptr && !experts->latent && layer.post_ffn_norm.empty() &&
        !layer.per_layer && !next.empty()) {
      moe(name + "ffn.", *experts, x, x, out, sum_norm(layer.scalar, next, stream, out, x));
      continue;
    }
    ffn(name, layer, stream, x, out);
    if (!layer.post_ffn_norm.empty()) norm(name + "post_ffn_norm", layer.post_ffn_norm, out, out);
    if (layer.per_layer) {
      add(name + "ffn.add", stream, out, stream);
      per_layer_input(name, layer, stream, out);
    }
    if (!layer.per_layer) {
      add_and_norm(name + "ffn.add", layer.scalar, next_name, next, stream, out, x);
    } else if (!last) {
      norm(next_name, next, stream, x);
    }
  }
  return stream;
}

// Attention residuals: every residual_block layers the running stream is sealed as a candidate (its buffer simply
// stays) and a new one starts from the mixer's output.
Buffer Compiler::residual_stack(Buffer stream) {
  const Buffer read = c_.buffer("residual_read", spec_.hidden);
  const Buffer x = normed_buffer();
  const Buffer out = c_.buffer("sublayer", spec_.hidden);
  std::vector<const float*> sealed;
  norm("layers.0.input_norm", spec_.layers[0].input_norm, stream, x);
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    const LayerSpec& layer = spec_.layers[i];
    const std::string name = concat("layers.", i, ".");
    const bool seals = static_cast<int64_t>(i) % spec_.residual_block == 0;
    if (seals) {
      sealed.push_back(stream.data);
      stream = c_.buffer(concat("stream.", sealed.size()), spec_.hidden);
    }
    mixer(name, layer, x, seals ? stream : out);
    residual_norm({.add = seals ? "" : name + "mixer.add",
                   .residual = name + "ffn_residual",
                   .norm = name + "ffn_norm",
                   .residual_weight = layer.ffn_residual,
                   .norm_weight = layer.ffn_norm},
                  sealed, stream, out, read, x);
    ffn(name, layer, read, x, out);
    if (i + 1 == spec_.layers.size()) break;
    const LayerSpec& next = spec_.layers[i + 1];
    const std::string next_name = concat("layers.", i + 1, ".");
    residual_norm({.add = name + "ffn.add",
                   .residual = next_name + "mixer_residual",
                   .norm = next_name + "input_norm",
                   .residual_weight = next.mixer_residual,
                   .norm_weight = next.input_norm},
                  sealed, stream, out, read, x);
  }
  add(concat("layers.", spec_.layers.size() - 1, ".ffn.add"), stream, out, stream);
  residual_read("output_residual", spec_.output_residual, sealed, stream, read);
  return read;
}

void Compiler::residual_norm(const ResidualNorm& part, const std::vector<const float*>& sealed, Buffer stream,
                             Buffer out, Buffer read, Buffer x) {
  if (!c_.device().is_cuda()) {
    if (!part.add.empty()) add(part.add, stream, out, stream);
    residual_read(part.residual, part.residual_weight, sealed, stream, read);
    norm(part.norm, part.norm_weight, read, x);
    return;
  }
  ResidualNormArgs args{.add = {},
                        .residual = residual_args(part.residual_weight, sealed, stream, read),
                        .norm = {.kind = NormKind::kRms,
                                 .size = spec_.hidden,
                                 .eps = spec_.eps,
                                 .weight = part.norm_weight.data(),
                                 .x = read.data,
                                 .x_stride = read.cols,
                                 .y = x.data,
                                 .y_stride = x.cols,
                                 .y_type = x.type}};
  if (!part.add.empty()) {
    args.add = {.kind = ElementwiseKind::kAdd,
                .size = spec_.hidden,
                .g = stream.data,
                .g_stride = stream.cols,
                .u = out.data,
                .u_stride = out.cols,
                .y = stream.data,
                .y_stride = stream.cols};
  }
  c_.add(bind_residual_norm(c_.device(), part.norm, std::move(args)), x);
}

AttnResidualArgs Compiler::residual_args(const FloatVector& weight, std::vector<const float*> candidates, Buffer stream,
                                         Buffer y) const {
  candidates.push_back(stream.data);
  return {.candidates = std::move(candidates),
          .stride = stream.cols,
          .size = spec_.hidden,
          .eps = spec_.eps,
          .weight = weight.data(),
          .y = y.data,
          .y_stride = y.cols};
}

void Compiler::residual_read(const std::string& name, const FloatVector& weight,
                             const std::vector<const float*>& sealed, Buffer stream, Buffer y) {
  c_.add(bind_attn_residual(c_.device(), name, residual_args(weight, sealed, stream, y)), y);
}

void Compiler::head(Buffer stream) {
  const Buffer rows = c_.logit_buffer("logit_rows", spec_.hidden);
  c_.add(bind_gather(
             c_.device(), "head.gather",
             {.size = spec_.hidden, .x = stream.data, .x_stride = stream.cols, .y = rows.data, .y_stride = rows.cols}),
         rows);
  const Buffer normed = product_logit_buffer("logit_rows.normed", rows);
  norm("head.norm", spec_.final_norm, rows, normed, RowSet::kLogits);
  c_.logits = c_.logit_buffer("logits", spec_.vocab);
  c_.add(bind_linear(c_.device(), "head.linear",
                     {.weight = spec_.head,
                      .x = normed.data,
                      .x_stride = normed.cols,
                      .y = c_.logits.data,
                      .y_stride = c_.logits.cols,
                      .x_type = normed.type,
                      .rows = RowSet::kLogits,
                      .activations = c_.options().activations,
                      .max_rows = c_.options().max_logit_rows}),
         c_.logits);
  if (spec_.logit_softcap == 0) return;
  c_.add(bind_elementwise(c_.device(), "head.softcap",
                          {.kind = ElementwiseKind::kSoftCap,
                           .beta = spec_.logit_softcap,
                           .size = spec_.vocab,
                           .g = c_.logits.data,
                           .g_stride = c_.logits.cols,
                           .y = c_.logits.data,
                           .y_stride = c_.logits.cols,
                           .rows = RowSet::kLogits}),
         c_.logits);
}

void Compiler::mixer(const std::string& layer, const LayerSpec& spec, Buffer x, Buffer out) {
  layer_ = static_cast<int>(&spec - spec_.layers.data());
  std::visit([&](const auto& part) { mix(layer, part, x, out); }, spec.mixer);
}

void Compiler::ffn(const std::string& layer, const LayerSpec& spec, Buffer stream, Buffer x, Buffer out) {
  const std::string name = layer + "ffn.";
  if (const auto* parallel = std::get_if<ParallelFfn>(&spec.ffn)) return feed(name, *parallel, stream, x, out);
  if (const auto* moe = std::get_if<MoeFfn>(&spec.ffn)) return feed(name, *moe, x, out);
  feed(name, std::get<DenseFfn>(spec.ffn), x, out);
}

std::unique_ptr<Circuit> compile(const ModelSpec& spec, Device& device, const CompileOptions& options) {
  auto circuit = std::make_unique<Circuit>(device, options);
  Compiler(spec, *circuit).stack();
  return circuit;
}

}  // namespace weir
