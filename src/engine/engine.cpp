#include "engine/engine.h"

#include <algorithm>
#include <cassert>
#include <optional>

#include "base/error.h"
#include "formats/embedded_files.h"
#include "models/generated_weights.h"
#include "state/positions.h"

namespace weir {

namespace {

// The GGUF model that `path` names; nullopt for a folder with a configuration, or without any model.
std::optional<std::filesystem::path> gguf_path(const std::filesystem::path& path) {
  if (is_embedded(path.string())) return std::nullopt;
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return path;
  if (std::filesystem::exists(path / "config.json", error)) return std::nullopt;
  return GgufFile::find_in(path);
}

}  // namespace

ModelSource open_model(const std::filesystem::path& path) {
  if (const std::optional<std::filesystem::path> file = gguf_path(path)) return GgufFile::open(*file);
  return Checkpoint::open(path);
}

std::unique_ptr<Model> Model::load(const std::filesystem::path& path) { return load(open_model(path)); }

std::unique_ptr<Model> Model::load(ModelSource files) {
  ModelSpec spec = std::visit([](const auto& source) { return load_model(source); }, files);
  return std::unique_ptr<Model>(new Model{std::move(files), std::move(spec), nullptr});
}

std::unique_ptr<Model> Model::generate(const std::filesystem::path& config, WeightFormat format, bool on_gpu) {
  const JsonObject object = JsonObject::read(config.string());
  const std::optional<JsonObject> nested = object.object_if("text_config");
  const JsonObject& text = nested ? *nested : object;
  const bool has_experts = text.has("num_experts") || text.has("n_routed_experts") || text.has("num_local_experts");
  const auto make = [&](bool described) {
    const auto weights = std::make_shared<GeneratedWeights>(format, has_experts, described);
    Checkpoint checkpoint = Checkpoint::generated(config, weights);
    ModelSpec spec = load_model(checkpoint);
    return std::unique_ptr<Model>(new Model{std::move(checkpoint), std::move(spec), described ? weights : nullptr});
  };
  // A CPU's weights are memory, which must not be written before it is known to be there.
  if (const int64_t available = available_memory(); !on_gpu && available > 0) {
    const int64_t needed = make(true)->weight_bytes();
    if (needed > available) {
      fail(printable(config.string()), ": generated weights need ", needed, " bytes, and ", available,
           " are available: choose fewer layers, another --weights, or --device cuda");
    }
  }
  return make(on_gpu);
}

std::vector<std::string> Model::file_paths() const {
  std::vector<std::string> paths;
  if (checkpoint() != nullptr) {
    for (const Checkpoint::File& file : checkpoint()->files()) paths.push_back(file.path);
  } else {
    for (const GgufTensor& tensor : gguf()->tensors()) {
      if (paths.empty() || paths.back() != *tensor.file) paths.push_back(*tensor.file);
    }
  }
  return paths;
}

int64_t Sequence::rollback(int64_t position) {
  const int64_t length = state_.rollback(position);
  tokens_.resize(static_cast<size_t>(length));
  return length;
}

// Each sequence may leave one page half filled. A live sequence resumes from one anchor and one journal page, has one
// more of each in the making, and keeps the older ones while rows above them are not accepted: a step's rows, and the
// backbone. A window holds fewer pages, but all while nothing is accepted; pages that nobody takes cost no memory.
StatePools::Limits Engine::limits(const EngineOptions& options, const StateLayout& layout) {
  StatePools::Limits limits;
  limits.pages = chunks_for(options.max_tokens) + options.max_sequences;
  limits.journal_pages = 4 * options.max_sequences;
  limits.sequences = options.max_sequences;
  limits.step_rows = options.max_batch_rows;
  limits.anchors = kAnchorsOfSequence * options.max_sequences + options.cached_anchors;
  if (layout.anchor_bytes() > 0) {
    limits.anchors +=
        std::min(options.cached_anchor_memory / layout.anchor_bytes(), options.max_tokens / kPagePositions);
  }
  if (options.anchor_spacing > 0) limits.anchors += options.max_tokens / options.anchor_spacing;
  if (layout.anchor_bytes() == 0) limits.anchors = 0;
  return limits;
}

// Bytes that the backbone keeps in front of each of its positions: an anchor, and what windows see from there.
int64_t Engine::backbone_bytes(int64_t spacing) const {
  const StateLayout& layout = circuit_->layout();
  int64_t bytes = layout.anchor_bytes();
  for (const StateLayout::Group& group : layout.groups()) {
    if (group.retention != Retention::kWindow) continue;
    bytes += std::min(spacing, group.window + kPagePositions) / kPagePositions * group.page_bytes;
  }
  return bytes;
}

void Engine::choose_max_tokens() {
  if (gpu_ != nullptr) {  // its memory counts, after the weights
    options_.page_memory = gpu_->free_bytes() / 2;
    for (int64_t* bytes : {&options_.anchor_memory, &options_.cached_anchor_memory}) {
      if (*bytes > 0) *bytes = gpu_->free_bytes() / 8;
    }
  }
  if (options_.max_tokens > 0) return;
  constexpr int64_t kLeast = 4096;
  int64_t page = 0;
  for (const StateLayout::Group& group : circuit_->layout().groups()) {
    if (group.retention == Retention::kForever) page += group.page_bytes;
  }
  const int64_t most = std::max(kLeast, options_.max_sequences * model_.spec.max_positions);
  options_.max_tokens = page == 0 ? most : std::clamp(options_.page_memory / page * kPagePositions, kLeast, most);
}

void Engine::choose_anchor_spacing() {
  constexpr int64_t kClosest = 64;  // nearer ones would cost more writing than they save computing
  if (options_.anchor_spacing > 0 || options_.anchor_memory <= 0 || backbone_bytes(kClosest) == 0) return;
  for (int64_t spacing = kClosest; spacing < options_.max_tokens; spacing *= 2) {
    if (options_.max_tokens / spacing * backbone_bytes(spacing) > options_.anchor_memory) continue;
    options_.anchor_spacing = spacing;
    return;
  }
}

std::unique_ptr<CudaDevice> Engine::open_gpu(const Model& model, int index) {
  if (index < 0) return nullptr;
  std::unique_ptr<CudaDevice> gpu = open_cuda(index);
  if (model.described != nullptr) {
    gpu->set_row_source([weights = model.described, device = gpu.get()](
                            std::byte* to, const std::byte* host, int64_t rows, int64_t row_bytes, int64_t stride) {
      return weights->write_rows(*device, to, host, rows, row_bytes, stride);
    });
  }
  return gpu;
}

Engine::Engine(const Model& model, const EngineOptions& options)
    : model_(model),
      options_(options),
      host_(options.threads, options.kernels),
      gpu_(open_gpu(model, options.gpu)),
      circuit_(compile(model.spec, device(),
                       {.max_rows = options.max_batch_rows,
                        .max_logit_rows = options.max_logit_rows,
                        .kv_dtype = options.kv_dtype,
                        .activations = options.activations,
                        .graphs = options.graphs})),
      pools_(circuit_->layout(), (choose_max_tokens(), choose_anchor_spacing(), limits(options_, circuit_->layout())),
             gpu_.get()) {
  if (gpu_ == nullptr) check_memory();
  logits_ = circuit_->logits.data;
  if (gpu_ != nullptr) {
    logits_ = reinterpret_cast<float*>(gpu_->allocate_host(options.max_logit_rows * circuit_->logits.cols * 4));
    gpu_->workspace();
    gpu_->posts();
    if (!gpu_->synchronize()) fail(gpu_->error());
  }
  const auto rows = static_cast<size_t>(options.max_batch_rows);
  spans_.reserve(rows);
  tokens_.reserve(rows);
  row_spans_.reserve(rows);
  positions_.reserve(rows);
  logit_rows_.reserve(static_cast<size_t>(options.max_logit_rows));
  for (int group = 0; group < pools_.groups(); ++group) pools_.pages(group).poison_released(options.poison_released);
  pools_.anchors().poison_released(options.poison_released);
}

// Of all blocks that sequences and the cache may come to hold; windows of running sequences only.
int64_t Engine::state_bytes() {
  int64_t bytes = pools_.anchors().bytes();
  for (int group = 0; group < pools_.groups(); ++group) {
    const RawBlockPool& pool = pools_.pages(group);
    int64_t most = pool.count();
    if (const int64_t window = pools_.window(group); window > 0) {
      most = std::min(most, options_.max_sequences * (chunks_for(window) + 2) + chunks_for(options_.max_batch_rows));
    }
    bytes += pool.bytes() / std::max<int64_t>(1, pool.count()) * most;
  }
  return bytes;
}

// Buffers and blocks are reserved but not touched yet: to find out in the middle of a step would be too late.
void Engine::check_memory() {
  const int64_t available = available_memory();
  const int64_t needed = circuit_->buffer_bytes();
  if (available == 0) return;
  if (options_.all_blocks && needed + state_bytes() > available) {
    fail("memory: pages for ", options_.max_tokens, " tokens and ", pools_.anchors().count(), " anchors need ",
         state_bytes(), " bytes, steps of ", options_.max_batch_rows, " rows ", needed, " more, and ", available,
         " are available: lower --max-tokens, --max-sequences or --max-batch-rows");
  }
  if (needed <= available) return;
  fail("memory: steps of ", options_.max_batch_rows, " rows (", options_.max_logit_rows, " with logits) need ", needed,
       " bytes of buffers, and ", available, " are available: lower --max-batch-rows");
}

void Engine::protect(std::span<const SpanRequest> spans, bool read_only) {
  for (const SpanRequest& request : spans) {
    for (SlotId slot : request.sequence->state_.anchor_slots()) {
      pools_.anchors().protect(static_cast<uint32_t>(slot), read_only);
    }
  }
}

bool Engine::run(const StepView& step, StepObserver* observer) {
  circuit_->run(step, observer);
  if (gpu_ == nullptr) return true;
  logits_here_ = false;
  if (gpu_->synchronize()) return true;
  failure_ = gpu_->error();
  return false;
}

void Engine::fetch_logits() {
  gpu_->to_host(logits_, circuit_->logits.data, static_cast<int64_t>(logit_rows_.size()) * circuit_->logits.cols * 4);
  logits_here_ = true;
}

StepStatus Engine::step(std::span<const SpanRequest> spans, StepObserver* observer) {
  if (!failure_.empty()) return StepStatus::kDeviceFailed;
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].sequence->state_.prepare(static_cast<int32_t>(spans[i].tokens.size()))) continue;
    for (size_t j = 0; j < i; ++j) spans[j].sequence->state_.abandon();
    return StepStatus::kOutOfBlocks;
  }
  spans_.clear();
  tokens_.clear();
  row_spans_.clear();
  positions_.clear();
  logit_rows_.clear();
  for (const SpanRequest& request : spans) {
    const auto first = static_cast<int32_t>(tokens_.size());
    const auto rows = static_cast<int32_t>(request.tokens.size());
    spans_.push_back(request.sequence->state_.span(first));
    for (int32_t r = 0; r < rows; ++r) {
      tokens_.push_back(request.tokens[static_cast<size_t>(r)]);
      positions_.push_back(request.sequence->length() + r);
      row_spans_.push_back(static_cast<int32_t>(spans_.size()) - 1);
      const bool wanted =
          request.logits == LogitsWanted::kAll || (request.logits == LogitsWanted::kLast && r == rows - 1);
      if (wanted) logit_rows_.push_back(first + r);
    }
  }
  assert(static_cast<int64_t>(tokens_.size()) <= options_.max_batch_rows);
  assert(static_cast<int64_t>(logit_rows_.size()) <= options_.max_logit_rows);

  const StepView view{.rows = static_cast<int32_t>(tokens_.size()),
                      .spans = spans_,
                      .tokens = tokens_,
                      .positions = positions_,
                      .row_spans = row_spans_,
                      .logit_rows = logit_rows_,
                      .page_pools = pools_.page_views(),
                      .anchor_pool = pools_.anchors().view()};
  if (options_.protect_anchors) protect(spans, true);
  const bool done = run(view, observer);
  if (options_.protect_anchors) protect(spans, false);
  if (!done) {
    for (const SpanRequest& request : spans) request.sequence->state_.abandon();
    return StepStatus::kDeviceFailed;
  }
  for (const SpanRequest& request : spans) {
    request.sequence->state_.commit();
    request.sequence->tokens_.insert(request.sequence->tokens_.end(), request.tokens.begin(), request.tokens.end());
  }
  ++steps_;
  return StepStatus::kDone;
}

void require_done(const Engine& engine, StepStatus status) {
  if (status == StepStatus::kDeviceFailed) fail(engine.failure());
  if (status == StepStatus::kOutOfBlocks) fail("state: the pages or anchors of this engine are used up");
}

void validate_tokens(std::span<const int64_t> ids, int64_t vocab, const std::string& source) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      fail(source, ": element ", i, ": expected a token id in [0, ", vocab, "), found ", ids[i]);
    }
  }
}

}  // namespace weir
