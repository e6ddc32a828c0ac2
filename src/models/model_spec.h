// A model as the parts that the engine knows, with names and numbers resolved: what a family file makes from a
// checkpoint, and all that the compiler of circuits sees. Matrices are views into mapped files, [out, in]; small
// vectors are owned FP32.
//
//   block = residual( mixer ), residual( feed-forward )      residual: plain, or block attention residuals
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "device/memory.h"
#include "formats/weight.h"
#include "ops/activation/activation.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/moe/moe.h"
#include "ops/rope/rope.h"
#include "ops/router/router.h"

namespace weir {

using FloatVector = std::vector<float>;

struct Linear {
  WeightView weight;
  FloatVector bias;  // [out] or empty
};

// Grouped-query attention.
struct AttentionMixer {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  Linear q, k, v, o;
  FloatVector q_norm, k_norm;  // [head_dim], RMS norm on each head before the rotation; empty: none
  int rope = 0;                // index into ModelSpec::ropes; -1: none
  bool q_gate = false;         // rows of q per head: [head_dim of q | head_dim of a gate]; core * sigmoid(gate), then o
  bool v_norm = false;         // RMS norm without weight on each head of v
  int64_t window = 0;          // a row at p sees positions above p - window; 0: all
  FloatVector sinks;           // [heads]: one more logit in the softmax's denominator; empty: none
  int share = -1;              // the layer whose stored K and V are read; k and v are then empty
                               // v alone empty: V = v_norm(k x), of K before its own norm
};

// The indexer of sparse attention (ops/indexer): each row attends to the top_k positions that it chooses. `shared`: to
// those that the last layer with an indexer of its own has chosen.
struct Indexer {
  int64_t heads = 0, dim = 0, top_k = 0;
  bool shared = false;  // then all below is empty
  int rope = -1;        // of the first dims of queries and key: index into ModelSpec::ropes
  float scale = 1, weight_scale = 1;
  Linear q;                         // [heads * dim, q_lora], from what q_a_norm gives
  Linear k;                         // [dim, hidden]
  FloatVector k_norm, k_norm_bias;  // [dim], LayerNorm
  float k_norm_eps = 1e-6f;
  Linear weights;  // [heads, hidden]
};

// Multi-head latent attention (DeepSeek-V2); without rotation where the family has none.
struct MlaMixer {
  int64_t heads = 0, nope = 0, extra = 0, value = 0, latent = 0;
  float scale = 1;
  float latent_eps = 1e-6f;   // of q_a_norm and kv_a_norm
  int rope = -1;              // of the `extra` dims: index into ModelSpec::ropes; -1: none
  std::optional<Linear> q_a;  // with q_a_norm and q_b; else q alone
  FloatVector q_a_norm;
  Linear q;                    // q_b_proj or q_proj: [heads * (nope + extra), q_lora or hidden]
  Linear kv_a;                 // [latent + extra, hidden]
  FloatVector kv_a_norm;       // [latent]
  WeightView kv_b;             // [heads * (nope + value), latent]; or, as in GGUF, in two parts:
  WeightView k_b, v_b;         // [heads * latent, nope] and [heads * value, latent]
  std::optional<Linear> gate;  // sigmoid output gate [heads * value, hidden]
  std::optional<Indexer> indexer;
  Linear o;
};

// Kimi Delta Attention.
struct KdaMixer {
  int64_t heads = 0, head_dim = 0, taps = 0;
  DecayKind decay = DecayKind::kUnbounded;
  float lower_bound = 0;               // kBounded
  Linear q, k, v;                      // [heads * head_dim, hidden]
  FloatVector q_conv, k_conv, v_conv;  // [heads * head_dim, taps]
  Linear f_a, f_b;                     // decay bottleneck
  FloatVector a;                       // e^(A_log) [heads]
  FloatVector dt_bias;                 // [heads * head_dim]
  Linear beta;                         // [heads, hidden]
  std::optional<Linear> gate_a;        // low-rank output gate: gate_a, then gate
  Linear gate;                         // [heads * head_dim, hidden or rank]
  FloatVector o_norm;                  // [head_dim]
  Linear o;
};

// Gated DeltaNet. Projections that share a matrix in the checkpoint are used as they lie there.
struct GdnMixer {
  int64_t heads = 0, key_heads = 0;  // of v, z, o and of q, k; key_heads divides heads
  int64_t key_dim = 0, value_dim = 0, taps = 0;
  KeyHeadOrder order = KeyHeadOrder::kGrouped;
  Linear qkvz;        // rows per key head [q | k | v of its heads | z of its heads]; or, when empty:
  Linear qkv, z;      // [q | k | v], all heads each, and z [heads * value_dim]
  Linear ba;          // rows per key head [b of its heads | a of its heads]; or, when empty:
  Linear b, a;        // [heads, hidden]
  FloatVector conv;   // [channels(), taps], channels as qkv's rows
  FloatVector decay;  // e^(A_log) [heads]
  FloatVector dt_bias;
  FloatVector o_norm;  // [value_dim]
  Linear o;

  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return heads * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }
};

struct DenseFfn {
  int64_t inter = 0;
  Linear gate, up, down;
};

struct MoeFfn {
  RouterScore score = RouterScore::kSigmoid;
  int64_t top_k = 0, groups = 1, topk_group = 1;
  bool renormalize = true;
  float scaling_factor = 1;
  Linear router;
  FloatVector router_bias;  // e_score_correction_bias; empty: none
  int64_t inter = 0;        // of a routed expert
  std::vector<ExpertWeights> experts;
  FloatVector gate_bias, up_bias, down_bias;  // [experts, inter], twice, and [experts, out]; empty: none
  std::optional<DenseFfn> shared;             // sees the full width
  std::optional<Linear> shared_gate;          // [1, hidden]: shared * sigmoid(gate x); none: ungated
  FloatVector expert_scale;                   // [experts]: on the router's weights; empty: none
  struct Latent {                             // LatentMoE: routed experts work in a narrower space
    Linear down, up;
    FloatVector norm;  // on the sum of the experts; empty: none
  };
  std::optional<Latent> latent;
};

// A dense block and routed experts side by side (Gemma 4), each with norms of its own; ffn_norm is the dense block's.
//   y = dense_norm( dense(ffn_norm(x)) ) + moe_norm( moe(moe_input_norm(x)) ),   the router sees router_norm(x)
struct ParallelFfn {
  DenseFfn dense;
  MoeFfn moe;
  FloatVector dense_norm, moe_input_norm, moe_norm, router_norm;  // [hidden]
};

using FeedForward = std::variant<DenseFfn, MoeFfn, ParallelFfn>;

// Per-layer embeddings (Gemma 3n, Gemma 4): of every token a vector for each layer.
//   p = (norm(projection x0) + scale * table[token]) / sqrt(2), x0 the input of the first layer, norm per layer
struct PerLayerTable {
  int64_t size = 0;   // of a layer's vector
  WeightView table;   // [at least vocab, layers * size], layer by layer
  float scale = 1;    // of the table
  Linear projection;  // [layers * size, hidden]
  FloatVector norm;   // [size]
  float eps = 0;      // of that norm
};
// What a layer does with its vector, after the feed-forward:  x += norm( projection( act(gate x, p) ) )
struct PerLayerInput {
  Linear gate;        // [size, hidden]
  Linear projection;  // [hidden, size]
  FloatVector norm;   // [hidden]
};

struct LayerSpec {
  FloatVector input_norm, ffn_norm;
  FloatVector post_mixer_norm, post_ffn_norm;  // on a sublayer's output before it is added; empty: none
  FloatVector mixer_residual, ffn_residual;    // attention residuals: norm weight times projection; empty: plain
  std::variant<AttentionMixer, MlaMixer, KdaMixer, GdnMixer> mixer;
  FeedForward ffn;
  std::optional<PerLayerInput> per_layer;  // where ModelSpec has the table
  float scalar = 1;                        // times the layer's output, at its end
};

struct RopeSpec {
  RopePairing pairing = RopePairing::kHalfSplit;
  FloatVector inv_freq;        // [rotated dims / 2]
  float attention_factor = 1;  // on cosines and sines
  double softmax_factor = 1;   // of MLA, on the softmax's scale (YaRN with mscale_all_dim)
};

// How a conversation becomes a prompt, and an answer a message.
enum class ChatFormat {
  kTemplate,  // by the Jinja template that comes with the model
  kKimiK3,    // Kimi K3's markup: the model has no template
};

struct ModelSpec {
  std::string family;
  ChatFormat chat_format = ChatFormat::kTemplate;
  int64_t hidden = 0, vocab = 0, max_positions = 0;
  float eps = 1e-5f;
  GluFunction act;       // of every feed-forward part
  WeightView embedding;  // [vocab, hidden]
  WeightView head;       // [vocab, hidden]; the embedding when tied
  FloatVector final_norm;
  float embedding_scale = 1;  // FP32
  std::optional<PerLayerTable> per_layer;
  float logit_softcap = 0;  // c * tanh(logit / c); 0: none
  std::vector<LayerSpec> layers;
  int64_t residual_block = 0;  // layers per block of attention residuals; 0: plain residuals
  FloatVector output_residual;
  std::vector<RopeSpec> ropes;       // that mixers name by index
  std::vector<Mapping> owned;        // matrices whose order in the file no kernel reads: views point here
  std::vector<int64_t> stop_tokens;  // end of turn, end of text
  std::vector<std::string> skipped;  // name prefixes of the checkpoint that this engine does not use
};

}  // namespace weir
