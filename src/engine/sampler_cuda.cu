#include "engine/sampler_cuda.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda/kernel.h"
#include "engine/sampler_cut_cuda.cuh"
#include "engine/sampler_job_cuda.cuh"
#include "engine/sampler_scan_cuda.cuh"

namespace weir {
namespace {

using namespace sampling;
using cuda::launch;

constexpr int64_t kMaxVocab = int64_t{1} << 22;
constexpr int kBlocksPerSm = 2;
constexpr int kFinishThreads = 32;
constexpr size_t kHistoriesPerRow = 4;  // of a step that may be waiting

int64_t aligned(int64_t bytes) { return (bytes + 15) / 16 * 16; }

// One block of host memory whose content a single copy takes to the device.
class Staging {
 public:
  Staging(CudaDevice& device, int64_t bytes) : device_(device) { reserve(bytes); }
  ~Staging() {
    device_.synchronize();
    cudaFreeHost(host_);
    device_.release(on_device_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  void begin(int64_t bytes) {
    if (bytes > capacity_) {
      device_.synchronize();
      cudaFreeHost(host_);
      device_.release(on_device_);
      reserve(2 * bytes);
    }
    used_ = 0;
  }
  template <class T>
  T* take(int64_t count) {
    T* memory = reinterpret_cast<T*>(host_ + used_);
    used_ += aligned(count * static_cast<int64_t>(sizeof(T)));
    assert(used_ <= capacity_);
    return memory;
  }
  template <class T>
  T* on_device(T* host) const {
    return reinterpret_cast<T*>(on_device_ + (reinterpret_cast<const std::byte*>(host) - host_));
  }
  void copy() {
    device_.launched(static_cast<int>(
        cudaMemcpyAsync(on_device_, host_, static_cast<size_t>(used_), cudaMemcpyHostToDevice, device_.stream())));
  }

 private:
  void reserve(int64_t bytes) {
    if (cudaMallocHost(reinterpret_cast<void**>(&host_), static_cast<size_t>(bytes)) != cudaSuccess) {
      fail("CUDA sampler: ", bytes, " bytes of pinned memory are not to be had");
    }
    on_device_ = device_.allocate(bytes);
    capacity_ = bytes;
  }

  CudaDevice& device_;
  std::byte* host_ = nullptr;
  std::byte* on_device_ = nullptr;
  int64_t capacity_ = 0, used_ = 0;
};

bool penalised(const SamplingOptions& o) {
  return o.repetition_penalty != 1 || o.frequency_penalty != 0 || o.presence_penalty != 0;
}
bool has_penalties(const SampleRow& row) {
  return penalised(*row.options) && row.history != nullptr && row.history->length() > 0;
}
bool has_stops(const SampleRow& row) {
  return row.generated < row.options->min_tokens && !row.options->stop_tokens.empty();
}
// Places of lists, more than needed.
int64_t list_places(const SampleRow& row) {
  int64_t places = static_cast<int64_t>(row.options->logit_bias.size());
  if (has_penalties(row)) places += static_cast<int64_t>(row.history->table().size());
  if (has_stops(row)) places += static_cast<int64_t>(row.options->stop_tokens.size());
  return places;
}

class RuntimeSampler final : public CudaSampler {
 public:
  RuntimeSampler(CudaDevice& device, int64_t vocab, int32_t max_rows)
      : device_(device),
        vocab_(vocab),
        max_rows_(max_rows),
        staging_(device, 4096 + max_rows * int64_t{1024}),
        histories_(device, kHistoriesPerRow * static_cast<size_t>(max_rows)) {
    const int64_t jobs = int64_t{2} * max_rows;
    histograms_ = device.allocate_array<Histogram>(jobs);
    lists_ = device.allocate_array<Word>(jobs * kMostListed);
    tops_ = device.allocate_array<TopList>(jobs);
    outcomes_ = device.allocate_array<Outcome>(max_rows);
    ids_ = device.allocate_array<int32_t>(max_rows);
    if (cudaMallocHost(reinterpret_cast<void**>(&host_outcomes_), sizeof(Outcome) * static_cast<size_t>(max_rows)) !=
            cudaSuccess ||
        cudaEventCreateWithFlags(&done_, cudaEventDisableTiming) != cudaSuccess) {
      fail("CUDA sampler: no pinned memory or event to be had");
    }
    results_.resize(static_cast<size_t>(max_rows));
  }

  ~RuntimeSampler() override {
    device_.synchronize();
    cudaEventDestroy(done_);
    cudaFreeHost(host_outcomes_);
    for (void* memory : {static_cast<void*>(histograms_), static_cast<void*>(lists_), static_cast<void*>(tops_),
                         static_cast<void*>(outcomes_), static_cast<void*>(ids_), static_cast<void*>(saved_)}) {
      if (memory != nullptr) device_.release(static_cast<std::byte*>(memory));
    }
  }

  void enqueue(std::span<const SampleRow> rows, float* logits, int64_t stride) override {
    assert(!rows.empty() && rows.size() <= static_cast<size_t>(max_rows_) && rows_ == 0);
    rows_ = static_cast<int32_t>(rows.size());
    tables_.assign(rows.size(), nullptr);
    histories_.begin_step();
    for (size_t i = 0; i < rows.size(); ++i) {
      if (has_penalties(rows[i])) tables_[i] = histories_.table(*rows[i].history);
    }
    begin_staging(rows);
    stage_jobs(rows, logits, stride);
    stage_changes(rows, logits, stride);
    staging_.copy();
    launch_all();
    device_.launched(static_cast<int>(cudaMemcpyAsync(host_outcomes_, outcomes_, sizeof(Outcome) * rows.size(),
                                                      cudaMemcpyDeviceToHost, device_.stream())));
    device_.launched(static_cast<int>(cudaEventRecord(done_, device_.stream())));
  }

  std::span<const std::optional<SampledToken>> wait() override {
    device_.launched(static_cast<int>(cudaEventSynchronize(done_)));
    const bool failed = !device_.error().empty();
    const auto count = static_cast<size_t>(std::exchange(rows_, 0));
    for (size_t i = 0; i < count; ++i) {
      results_[i].reset();
      const Outcome& outcome = host_outcomes_[i];
      if (failed || outcome.id < 0) continue;
      SampledToken& token = results_[i].emplace();
      token.id = outcome.id;
      if (logprob_jobs_[i] < 0) continue;
      token.logprob = outcome.logprob;
      for (int32_t k = 0; k < outcome.top.count; ++k) token.top.add(outcome.top.id[k], outcome.top.logprob[k]);
    }
    return {results_.data(), count};
  }

  const int32_t* ids() const override { return ids_; }

 private:
  int64_t mask_words() const { return (vocab_ + 31) / 32; }

  void begin_staging(std::span<const SampleRow> rows) {
    int64_t bytes = 1024 + static_cast<int64_t>(histories_.updates().size_bytes());
    bytes += rows_ * static_cast<int64_t>(2 * (sizeof(Job) + sizeof(State)) + sizeof(Changes) + 64);
    int64_t places = 0;
    for (const SampleRow& row : rows) {
      places += list_places(row);
      bytes += static_cast<int64_t>(row.options->logit_bias.size() * sizeof(Bias) +
                                    row.options->stop_tokens.size() * sizeof(int32_t)) +
               48;
      if (!row.allowed.empty()) bytes += aligned(mask_words() * 4);
    }
    staging_.begin(bytes);
    if (places > saved_places_) {
      if (saved_ != nullptr) device_.release(reinterpret_cast<std::byte*>(saved_));
      saved_ = device_.allocate_array<float>(2 * places);
      saved_places_ = 2 * places;
    }
  }

  // The rows, then once more those that want logprobs.
  void stage_jobs(std::span<const SampleRow> rows, const float* logits, int64_t stride) {
    selecting_ = drawing_ = 0;
    logprob_jobs_.assign(rows.size(), -1);
    int32_t count = rows_;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].options->top_logprobs >= 0) logprob_jobs_[i] = count++;
    }
    with_logprobs_ = count - rows_;
    jobs_ = staging_.take<Job>(count);
    states_ = staging_.take<State>(count);
    std::fill_n(states_, count, State{});
    for (size_t i = 0; i < rows.size(); ++i) {
      const SamplingOptions& o = *rows[i].options;
      const float* row_logits = logits + static_cast<int64_t>(i) * stride;
      const bool top_k = o.top_k > 0 && o.top_k < vocab_;
      const bool selects = o.temperature > 0 && (top_k || o.top_p != 1);
      jobs_[i] = {.logits = row_logits,
                  .allowed = stage_mask(rows[i].allowed),
                  .seed = o.seed,
                  .position = rows[i].position,
                  .temperature = o.temperature,
                  .top_p = o.top_p,
                  .min_p = o.min_p,
                  .top_k = top_k ? o.top_k : 0,
                  .logprobs = false,
                  .selects = selects};
      if (selects) ++selecting_;
      if (o.temperature > 0) ++drawing_;
      if (logprob_jobs_[i] < 0) continue;
      jobs_[logprob_jobs_[i]] = {.logits = row_logits,
                                 .allowed = nullptr,
                                 .seed = 0,
                                 .position = 0,
                                 .temperature = 1,
                                 .top_p = 1,
                                 .min_p = 0,
                                 .top_k = static_cast<int32_t>(std::min<int64_t>(o.top_logprobs, vocab_)),
                                 .logprobs = true,
                                 .selects = true};
    }
    staged_logprob_jobs_ = staging_.take<int32_t>(rows_);
    std::ranges::copy(logprob_jobs_, staged_logprob_jobs_);
    whole_quads_ = reinterpret_cast<uintptr_t>(logits) % 16 == 0 && stride % 4 == 0;
  }

  const uint32_t* stage_mask(std::span<const uint32_t> allowed) {
    if (allowed.empty()) return nullptr;
    assert(static_cast<int64_t>(allowed.size()) >= mask_words());
    uint32_t* words = staging_.take<uint32_t>(mask_words());
    std::copy_n(allowed.begin(), mask_words(), words);
    return staging_.on_device(words);
  }

  void stage_changes(std::span<const SampleRow> rows, float* logits, int64_t stride) {
    const auto with = std::ranges::count_if(rows, [](const SampleRow& row) { return list_places(row) > 0; });
    updates_ = staging_.take<DeviceHistories::Update>(static_cast<int64_t>(histories_.updates().size()));
    std::ranges::copy(histories_.updates(), updates_);
    changes_ = staging_.take<Changes>(with);
    changed_ = 0;
    float* saved = saved_;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (list_places(rows[i]) == 0) continue;
      const SamplingOptions& o = *rows[i].options;
      Changes& c = changes_[changed_++];
      c = {.logits = logits + static_cast<int64_t>(i) * stride,
           .state = staging_.on_device(states_ + i),
           .saved = saved,
           .repetition = o.repetition_penalty,
           .frequency = o.frequency_penalty,
           .presence = o.presence_penalty};
      Bias* biases = staging_.take<Bias>(static_cast<int64_t>(o.logit_bias.size()));
      for (const auto& [id, value] : o.logit_bias) biases[c.bias_count++] = {id, value};
      c.biases = staging_.on_device(biases);
      if (tables_[i] != nullptr) {
        c.penalised = tables_[i];
        c.penalised_count = static_cast<int32_t>(rows[i].history->table().size());
      }
      if (has_stops(rows[i])) {
        int32_t* stops = staging_.take<int32_t>(static_cast<int64_t>(o.stop_tokens.size()));
        std::ranges::copy(o.stop_tokens, stops);
        std::sort(stops, stops + o.stop_tokens.size());
        c.stop_count = static_cast<int32_t>(std::unique(stops, stops + o.stop_tokens.size()) - stops);
        c.stops = staging_.on_device(stops);
      }
      saved += c.bias_count + c.penalised_count + c.stop_count;
    }
  }

  Batch batch(int32_t first_job) const {
    return {.jobs = staging_.on_device(jobs_ + first_job),
            .states = staging_.on_device(states_ + first_job),
            .histograms = histograms_ + first_job,
            .lists = lists_ + int64_t{first_job} * kMostListed,
            .tops = tops_ + first_job,
            .vocab = static_cast<int32_t>(vocab_),
            .whole_quads = whole_quads_};
  }

  // Few blocks, since each adds its sums to the row's; shared out among the jobs that have something to do.
  void launch_rows(void (*kernel)(const Batch), int32_t first_job, int32_t jobs, int32_t busy) {
    const int64_t quads = (vocab_ + 3) / 4;
    const int64_t most = std::max<int64_t>(kBlocksPerSm * device_.sm_count() / busy, 1);
    const int64_t blocks = std::clamp<int64_t>((quads + kThreads - 1) / kThreads, 1, most);
    launch(device_, {.grid = {blocks, jobs}, .block = kThreads, .overlap = true}, kernel, batch(first_job));
  }

  void launch_all() {
    // Logprobs are those of unchanged logits: after the draw, where logits are changed.
    const bool apart = changed_ > 0 && with_logprobs_ > 0;
    const int32_t jobs = apart ? rows_ : rows_ + with_logprobs_;
    const Changes* changes = staging_.on_device(changes_);
    if (const auto updates = static_cast<int>(histories_.updates().size()); updates > 0) {
      launch(device_, {.grid = (updates + kThreads - 1) / kThreads, .block = kThreads, .overlap = true}, update_kernel,
             staging_.on_device(updates_), updates);
    }
    if (changed_ > 0) {
      launch(device_, {.grid = changed_, .block = kChangeThreads, .overlap = true}, change_kernel, changes);
    }
    launch_rows(scan_kernel, 0, jobs, jobs);
    if (const int32_t selecting = selecting_ + jobs - rows_; selecting > 0) {
      launch_rows(histogram_kernel, 0, jobs, selecting);
      launch_rows(cut_kernel, 0, jobs, selecting);
    }
    if (drawing_ > 0) launch_rows(draw_kernel, 0, rows_, drawing_);
    if (changed_ > 0) {
      launch(device_, {.grid = changed_, .block = kChangeThreads, .overlap = true}, restore_kernel, changes);
    }
    if (apart) {
      for (const auto kernel : {scan_kernel, histogram_kernel, cut_kernel}) {
        launch_rows(kernel, rows_, with_logprobs_, with_logprobs_);
      }
    }
    launch(device_, {.grid = (rows_ + kFinishThreads - 1) / kFinishThreads, .block = kFinishThreads, .overlap = true},
           finish_kernel, batch(0), staging_.on_device(staged_logprob_jobs_), rows_, outcomes_, ids_);
  }

  CudaDevice& device_;
  int64_t vocab_;
  int32_t max_rows_;
  Staging staging_;
  DeviceHistories histories_;
  Histogram* histograms_ = nullptr;  // [2 * max_rows], as lists_ and tops_
  Word* lists_ = nullptr;
  TopList* tops_ = nullptr;
  Outcome* outcomes_ = nullptr;  // [max_rows]
  int32_t* ids_ = nullptr;
  float* saved_ = nullptr;
  int64_t saved_places_ = 0;
  Outcome* host_outcomes_ = nullptr;
  cudaEvent_t done_ = nullptr;
  std::vector<std::optional<SampledToken>> results_;

  // What was queued last; pointers into the staging block.
  int32_t rows_ = 0, with_logprobs_ = 0;
  int32_t changed_ = 0;
  int32_t selecting_ = 0, drawing_ = 0;  // rows with cuts, rows with noise
  bool whole_quads_ = false;
  std::vector<int32_t> logprob_jobs_;
  Job* jobs_ = nullptr;
  State* states_ = nullptr;
  int32_t* staged_logprob_jobs_ = nullptr;
  DeviceHistories::Update* updates_ = nullptr;
  Changes* changes_ = nullptr;
  std::vector<const Penalised*> tables_;  // of rows with penalties
};

}  // namespace

std::unique_ptr<CudaSampler> make_cuda_sampler(CudaDevice& device, int64_t vocab, int32_t max_rows) {
  if (vocab < 1 || vocab > kMaxVocab) fail("sampler: expected 1 to ", kMaxVocab, " logits, found ", vocab);
  if (max_rows < 1) fail("sampler: expected at least one row, found ", max_rows);
  return std::make_unique<RuntimeSampler>(device, vocab, max_rows);
}

}  // namespace weir
