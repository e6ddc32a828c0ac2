// How parts become ops: one Compiler walks a model's layers and adds bound ops to a circuit. Internal to the compile_*
// files, one per kind of part. Every mixer and feed-forward reads `x` (normed) and writes `out`; the residual scheme
// around them is the only difference between stacks.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/circuit.h"
#include "ops/activation/activation.h"
#include "ops/attn_residual/attn_residual.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/gate/gate.h"
#include "ops/linear/linear.h"
#include "ops/norm/add_norm.h"
#include "ops/norm/norm.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace weir {

inline constexpr float kL2Eps = 1e-6f;  // on the sum (spec of the delta rule's q and k)

class Compiler {
 public:
  Compiler(const ModelSpec& spec, Circuit& circuit) : spec_(spec), c_(circuit) {}

  void stack();

 private:
  // --- buffers (compiler.cpp) ---
  // For rows that only products read, in place of `exact`: one of BF16 where products would round them to it.
  Buffer product_buffer(std::string_view key, Buffer exact);
  Buffer product_logit_buffer(std::string_view key, Buffer exact);
  Buffer normed_buffer();  // what mixers and feed-forward parts begin with, by the same rule
  bool products_round(int64_t cols) const;
  bool experts_round(const MoeFfn& moe) const;

  // --- residual schemes (compile.cpp) ---
  Buffer plain_stack(Buffer stream);
  Buffer residual_stack(Buffer stream);
  // The names of three ops, the first of which need not be, and the weights of the others.
  struct ResidualNorm {
    std::string add, residual, norm;
    const FloatVector& residual_weight;
    const FloatVector& norm_weight;
  };
  // stream = stream + out, read = the mixture of all streams, x = its norm; one op on a GPU.
  void residual_norm(const ResidualNorm& part, const std::vector<const float*>& sealed, Buffer stream, Buffer out,
                     Buffer read, Buffer x);
  void residual_read(const std::string& name, const FloatVector& weight, const std::vector<const float*>& sealed,
                     Buffer stream, Buffer y);
  AttnResidualArgs residual_args(const FloatVector& weight, std::vector<const float*> candidates, Buffer stream,
                                 Buffer y) const;
  void head(Buffer stream);
  void mixer(const std::string& layer, const LayerSpec& spec, Buffer x, Buffer out);
  // `stream`: what `x` is the norm of.
  void ffn(const std::string& layer, const LayerSpec& spec, Buffer stream, Buffer x, Buffer out);

  // --- mixers (compile_attention.cpp, compile_mla.cpp, compile_delta.cpp) ---
  void mix(const std::string& layer, const AttentionMixer& m, Buffer x, Buffer out);
  struct KvFields {
    PageField key, value;
  };
  KvFields add_kv_fields(const std::string& name, const AttentionMixer& m);
  // K and V of a layer that has its own: normed, rotated, stored.
  void store_kv(const std::string& name, const AttentionMixer& m, const KvFields& fields, Buffer k, Buffer v);
  // The same and what becomes of q, as one op. q_from: q with its gate, if any.
  struct AttentionBuffers {
    Buffer q_from, k, v, q, gate;
  };
  void attention_inputs(const std::string& name, const AttentionMixer& m, const KvFields& fields,
                        const AttentionBuffers& b);
  void mix(const std::string& layer, const MlaMixer& m, Buffer x, Buffer out);
  // Chooses the positions that the layer's rows attend to. `low`: what q_a_norm gave.
  void select(const std::string& name, const Indexer& indexer, Buffer low, Buffer x);
  void mix(const std::string& layer, const KdaMixer& m, Buffer x, Buffer out);
  void mix(const std::string& layer, const GdnMixer& m, Buffer x, Buffer out);  // compile_gdn.cpp
  // What a KDA layer's projections give; q, k, v, f and beta before and after the ops that prepare them.
  struct KdaBuffers {
    Buffer q, k, v, f, beta, gate, o;
  };
  void kda_layer(const std::string& name, const KdaMixer& m, const KdaBuffers& b);  // as one op
  void kda_ops(const std::string& name, const KdaMixer& m, const KdaBuffers& b);    // one by one
  // Convolution and SiLU of all columns of x; its op and state are named `stem` + "conv" and "window".
  void convolution(const std::string& stem, const FloatVector& weight, int64_t taps, Buffer x, Buffer y);
  // Log decay and beta in place; `args` without its buffers.
  void decay(const std::string& name, KdaGateArgs args, Buffer g, Buffer beta);
  struct DeltaInputs {
    Buffer q, k, v, g, beta;
  };
  // The recurrence and its state; `args` without state and buffers.
  void delta_rule(const std::string& name, DeltaRuleArgs args, const DeltaInputs& in, Buffer o);
  void gdn_in_one_op(const std::string& name, const GdnMixer& m, Buffer qkv, Buffer z, Buffer b, Buffer a, Buffer o);
  // RMS norm of each head times a function of the gate, in place.
  void gated_norm(const std::string& name, NormKind kind, int64_t heads, const FloatVector& weight, Buffer gate,
                  Buffer o);

  // One of several products of the same x, or of its own.
  struct Product {
    std::string name;
    const Linear* part;
    Buffer y;
    std::optional<Buffer> x = {};
  };

  // --- feed-forward (compile_ffn.cpp) ---
  void feed(const std::string& name, const DenseFfn& f, Buffer x, Buffer out);
  void feed(const std::string& name, const MoeFfn& f, Buffer x, Buffer out) { moe(name, f, x, x, out); }
  Buffer latent_buffer(const MoeFfn& f);  // what the experts of a latent mixture read
  void moe(const std::string& name, const MoeFfn& f, Buffer router_input, Buffer x, Buffer out,
           const std::optional<SumNorm>& follows = {});
  // A dense part in two halves: the products of x, and what follows from their buffers.
  std::vector<Product> wide_products(const DenseFfn& f, const std::string& prefix = "");
  void narrow(const std::string& name, const DenseFfn& f, Buffer out);
  void feed(const std::string& name, const ParallelFfn& f, Buffer stream, Buffer x, Buffer out);

  // --- per-layer embeddings (compile_per_layer.cpp) ---
  void per_layer_vectors(Buffer x0);  // of all layers
  // The layer's part of them: stream = (stream + ...) * scalar.
  void per_layer_input(const std::string& layer, const LayerSpec& spec, Buffer stream, Buffer out);

  // --- small parts (compiler.cpp) ---
  void linear(const std::string& name, const Linear& part, Buffer x, Buffer y);
  // One op on a GPU, named as the first; else `name` + their own. Parts without a weight are left out.
  void linears(const std::string& name, const std::vector<Product>& parts, Buffer x);
  LinearArgs linear_args(const Linear& part, Buffer x, Buffer y) const;
  void norm(const std::string& name, const FloatVector& weight, Buffer x, Buffer y, RowSet rows = RowSet::kAll);
  // The first `size` elements of each row, or each of its first groups of so many.
  void rms(const std::string& name, const FloatVector& weight, int64_t size, float eps, Buffer x, Buffer y,
           RowSet rows = RowSet::kAll, int64_t groups = 1);
  // Without weight.
  void plain_rms(const std::string& name, int64_t groups, int64_t size, Buffer x, Buffer y);
  struct Part {
    int64_t size = 0;  // elements per group
    Buffer y;
  };
  // Takes rows of `groups` groups of parts apart.
  void split(const std::string& name, int64_t groups, std::vector<Part> parts, Buffer x);
  // The L2 norm of each head, times `scale`, in place.
  void l2(const std::string& name, int64_t heads, int64_t dim, float scale, Buffer x);
  void elementwise(const std::string& name, ElementwiseKind kind, Buffer g, Buffer u, Buffer y);
  void add(const std::string& name, Buffer a, Buffer b, Buffer y);
  void add_scaled(const std::string& name, Buffer a, Buffer b, float factor, Buffer y);  // y = (a + b) * factor
  // stream = (stream + out) * factor, then x = its norm; one op on a GPU. Without weight: no norm.
  void add_and_norm(const std::string& add_name, float factor, const std::string& norm_name, const FloatVector& weight,
                    Buffer stream, Buffer out, Buffer x);
  SumNorm sum_norm(float factor, const FloatVector& weight, Buffer stream, Buffer out, Buffer x) const;
  void rope_angles();  // of every rope of the model
  // Rotates dims of each head, from `first` on, with angles of ModelSpec::ropes[rope].
  void rotate(const std::string& name, int rope, int64_t heads, int64_t head_dim, Buffer x, int64_t first = 0);
  void kv_write(const std::string& name, PageField field, int64_t to, Buffer x);
  StateDtype kv() const { return c_.options().kv_dtype; }

  struct Angles {
    Buffer cos, sin;
  };

  const ModelSpec& spec_;
  Circuit& c_;
  int layer_ = 0;                      // whose mixer is being compiled
  std::map<int, KvFields> kv_fields_;  // by layer
  Buffer per_layer_;                   // [rows, layers * size]
  std::vector<Angles> angles_;         // by rope
  std::shared_ptr<SparseAttentionWorkspace> sparse_workspace_ = make_sparse_attention_workspace();
  std::shared_ptr<MoeWorkspace> moe_workspace_ = std::make_shared<MoeWorkspace>();  // layers run one after the other
};

}  // namespace weir
