// Steps: ragged batches of spans through one forward pass, over sequences whose state the engine owns.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "formats/checkpoint.h"
#include "formats/gguf.h"
#include "models/circuit.h"
#include "models/family.h"
#include "models/generated_weights.h"
#include "state/sequence_state.h"

namespace weir {

// `path`: a folder as published on Hugging Face, a GGUF file, or a folder with one GGUF model and no config.json. Maps
// the files and reads their headers, whatever model is in them.
using ModelSource = std::variant<Checkpoint, GgufFile>;
ModelSource open_model(const std::filesystem::path& path);

// Files and the model read from them. The spec's views point into the files: they live together.
struct Model {
  ModelSource files;
  ModelSpec spec;
  std::shared_ptr<GeneratedWeights> described;  // of weights that exist only on GPUs

  static std::unique_ptr<Model> load(const std::filesystem::path& path);
  static std::unique_ptr<Model> load(ModelSource files);
  // A model of this configuration (a config.json) with generated weights in `format`: for measuring.
  // With `on_gpu` they exist only there: engines of this model need a GPU.
  static std::unique_ptr<Model> generate(const std::filesystem::path& config, WeightFormat format, bool on_gpu = false);
  const Checkpoint* checkpoint() const { return std::get_if<Checkpoint>(&files); }  // nullptr for GGUF
  const GgufFile* gguf() const { return std::get_if<GgufFile>(&files); }            // nullptr for a folder
  int64_t weight_bytes() const {
    return std::visit([](const auto& source) { return source.total_bytes(); }, files);
  }
  std::vector<std::string> file_paths() const;  // of the weights
};

struct EngineOptions {
  int gpu = -1;        // index of the NVIDIA GPU to compute on; -1: the CPU
  bool graphs = true;  // on a GPU: decode steps are recorded once and replayed
  int threads = 1;
  KernelSet kernels = KernelSet::kReference;
  int32_t max_batch_rows = 512;
  int32_t max_logit_rows = 64;
  StateDtype kv_dtype = StateDtype::kF16;
  Activations activations = Activations::kF32;
  int64_t max_sequences = 1;         // sizes journal pages and anchors
  int64_t max_tokens = 4096;         // of all sequences together; sizes the pages
  int64_t page_memory = 0;           // with max_tokens 0: as many as these bytes have pages for, at least 4096, at most
                                     // whole contexts for all sequences
  int64_t cached_anchors = 0;        // beyond those of live sequences
  int64_t cached_anchor_memory = 0;  // and as many more as these bytes hold, at most one for each 16 of max_tokens
  int64_t anchor_spacing = 0;        // keep anchors and windows at these multiples (of 16) for deep rollbacks; 0: none
  int64_t anchor_memory = 0;         // with spacing 0: keep as many as these bytes hold, at least 64 positions apart
  bool all_blocks = false;           // all pages and anchors will be used: Error when there is no memory for them
  bool poison_released = false;      // tests: released blocks are filled with NaN
  bool protect_anchors = false;  // tests: anchors are read-only memory while a step runs, but for those it must write
};

inline constexpr int64_t kAnchorsOfSequence = 4;  // that a live one may hold

// One live sequence. Destroying it gives its blocks back.
class Sequence {
 public:
  Sequence(StatePools& pools, int64_t anchor_spacing) : state_(pools, anchor_spacing) {}

  std::span<const int32_t> tokens() const { return tokens_; }
  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }
  const SequenceState& state() const { return state_; }

  // For who starts sequences from shared blocks: the blocks, and the tokens they stand for.
  SequenceState& blocks() { return state_; }
  void stands_for(std::span<const int32_t> tokens) { tokens_.assign(tokens.begin(), tokens.end()); }
  void reserve(int64_t tokens) {  // so that steps need not allocate
    tokens_.reserve(static_cast<size_t>(tokens));
    state_.reserve(tokens);
  }

  // Rows below `position` are final.
  void accept(int64_t position) { state_.accept(position); }
  // Forgets all rows from `position` on, and more where the state can't resume there: returns the new length, and the
  // caller steps the tokens between it and `position` again. Afterwards everything is as if the sequence had never gone
  // further.
  int64_t rollback(int64_t position);

 private:
  friend class Engine;
  SequenceState state_;
  std::vector<int32_t> tokens_;
};

enum class LogitsWanted { kNone, kLast, kAll };

struct SpanRequest {
  Sequence* sequence = nullptr;
  std::span<const int32_t> tokens;  // the rows to compute: they follow the sequence's tokens
  LogitsWanted logits = LogitsWanted::kLast;
};

enum class StepStatus {
  kDone,
  kOutOfBlocks,   // pages or anchors are short: nothing was computed, nothing changed
  kDeviceFailed,  // the GPU reported an error (Engine::failure()): no sequence changed, and no later step can be done
};

class Engine {
 public:
  // `model` must outlive the engine. Error when the buffers of a step are larger than the memory that is left.
  Engine(const Model& model, const EngineOptions& options);

  // Empty, or what the device reported.
  const std::string& failure() const { return failure_; }

  std::unique_ptr<Sequence> new_sequence() { return std::make_unique<Sequence>(pools_, options_.anchor_spacing); }

  // Computes all rows of all spans in one pass. Each sequence at most once; the rows and the rows that want logits
  // within the limits; token ids in [0, vocab): asserted, since callers check them with validate_tokens. Logits of the
  // step: row i of logits() in the order of spans, positions ascending; valid until the next step.
  StepStatus step(std::span<const SpanRequest> spans, StepObserver* observer = nullptr);
  // From a GPU they are copied when the first row is asked for.
  std::span<const float> logits(int64_t i) {
    if (!logits_here_) fetch_logits();
    return {logits_ + i * circuit_->logits.cols, static_cast<size_t>(circuit_->logits.cols)};
  }

  const Model& model() const { return model_; }
  const EngineOptions& options() const { return options_; }
  Device& device() { return gpu_ ? static_cast<Device&>(*gpu_) : host_; }
  CudaDevice* gpu() { return gpu_.get(); }
  CpuDevice& host() { return host_; }  // threads, whatever the device
  Circuit& circuit() { return *circuit_; }
  const Circuit& circuit() const { return *circuit_; }
  StatePools& pools() { return pools_; }
  int64_t steps() const { return steps_; }

 private:
  static std::unique_ptr<CudaDevice> open_gpu(const Model& model, int index);
  void check_memory();
  int64_t state_bytes();
  int64_t backbone_bytes(int64_t spacing) const;
  void choose_max_tokens();
  void choose_anchor_spacing();
  static StatePools::Limits limits(const EngineOptions& options, const StateLayout& layout);
  void protect(std::span<const SpanRequest> spans, bool read_only);
  bool run(const StepView& step, StepObserver* observer);
  void fetch_logits();

  const Model& model_;
  EngineOptions options_;
  CpuDevice host_;
  std::unique_ptr<CudaDevice> gpu_;
  std::unique_ptr<Circuit> circuit_;
  StatePools pools_;  // by options_ with the spacing chosen
  int64_t steps_ = 0;
  float* logits_ = nullptr;  // of the step, in host memory
  bool logits_here_ = true;
  std::string failure_;
  // Staging: what varies per step.
  std::vector<SpanView> spans_;
  std::vector<int32_t> tokens_, row_spans_, logit_rows_;
  std::vector<int64_t> positions_;
};

// Error unless the step is done: with what the device reported, or that the blocks are used up.
void require_done(const Engine& engine, StepStatus status);

// Error naming `source` and the index of the first id outside [0, vocab).
void validate_tokens(std::span<const int64_t> ids, int64_t vocab, const std::string& source);

}  // namespace weir
