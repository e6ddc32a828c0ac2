// CudaDevice over the CUDA runtime.
#include "device/cuda_device.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "device/cuda/kernel.h"

namespace weir {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kBounceBytes = int64_t{32} << 20;  // pinned memory that uploads pass through
constexpr int kOldestMajor = 8;                      // BF16 tensor cores

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::string version(int number) { return concat(number / 1000, ".", number % 1000 / 10); }

void must(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail("CUDA: ", what, ": ", cudaGetErrorString(status));
}

// Host memory that copies don't pass through another buffer.
class Pinned {
 public:
  Pinned() = default;
  explicit Pinned(int64_t bytes) : bytes_(bytes) {
    must(cudaMallocHost(reinterpret_cast<void**>(&data_), static_cast<size_t>(bytes)), "pinned memory");
  }
  Pinned(Pinned&& other) noexcept { *this = std::move(other); }
  Pinned& operator=(Pinned&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Pinned() {
    if (data_ != nullptr) cudaFreeHost(data_);
  }
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

class RuntimeDevice final : public CudaDevice {
 public:
  explicit RuntimeDevice(int index) {
    must(cudaSetDevice(index), "choosing the device");
    read_info(index);
    cudaStream_t stream = nullptr;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    stream_ = reinterpret_cast<CudaStream>(stream);
    bounce_ = Pinned(kBounceBytes);
  }

  ~RuntimeDevice() override {
    cudaStreamSynchronize(stream());
    drop_graphs();
    for (const auto& [memory, bytes] : blocks_) cudaFree(memory);
    cudaStreamDestroy(stream());
  }

  const CudaInfo& info() const override { return info_; }

  // --- memory ---
  std::byte* allocate(int64_t bytes) override {
    const int64_t size = aligned(std::max<int64_t>(bytes, 1));
    void* memory = nullptr;
    if (cudaMalloc(&memory, static_cast<size_t>(size)) != cudaSuccess) {
      cudaGetLastError();
      fail("CUDA memory: ", size, " bytes are needed beyond the ", allocated_, " taken so far, and ", free_bytes(),
           " of ", info_.total_bytes, " are free on ", info_.name,
           ": lower --max-tokens, --max-sequences or --max-batch-rows, or use a smaller model or format");
    }
    blocks_.emplace(static_cast<std::byte*>(memory), size);
    allocated_ += size;
    keep(cudaMemsetAsync(memory, 0, static_cast<size_t>(size), stream()));
    return static_cast<std::byte*>(memory);
  }

  void release(std::byte* memory) override {
    const auto found = blocks_.find(memory);
    if (found == blocks_.end()) return;
    synchronize();
    allocated_ -= found->second;
    cudaFree(memory);
    blocks_.erase(found);
  }

  std::byte* allocate_host(int64_t bytes) override {
    host_.emplace_back(bytes);
    return host_.back().data();
  }

  int64_t allocated_bytes() const override { return allocated_; }

  int64_t free_bytes() const override {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return static_cast<int64_t>(free);
  }

  const std::byte* upload(const std::byte* host, int64_t rows, int64_t row_bytes, int64_t stride) override {
    if (host == nullptr) return nullptr;
    const auto key = std::make_tuple(host, rows, row_bytes, stride);
    const auto found = uploaded_.find(key);
    if (found != uploaded_.end()) return found->second;
    std::byte* to = allocate(rows * row_bytes);
    copy_rows(to, host, rows, row_bytes, stride);
    uploaded_.emplace(key, to);
    return to;
  }

  void copy_rows(std::byte* to, const std::byte* host, int64_t rows, int64_t row_bytes, int64_t stride) override {
    if (row_source_ && row_source_(to, host, rows, row_bytes, stride)) return;
    if (row_bytes == stride) {
      row_bytes = stride = rows * row_bytes;
      rows = 1;
    }
    if (row_bytes > kBounceBytes) {
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t first = 0; first < row_bytes; first += kBounceBytes) {
          const int64_t count = std::min(kBounceBytes, row_bytes - first);
          bounce(to + row * row_bytes + first, host + row * stride + first, 1, count, count);
        }
      }
      return;
    }
    const int64_t at_once = kBounceBytes / row_bytes;
    for (int64_t row = 0; row < rows; row += at_once) {
      bounce(to + row * row_bytes, host + row * stride, std::min(at_once, rows - row), row_bytes, stride);
    }
  }

  std::byte* workspace() override { return grow(workspace_, workspace_bytes_); }
  std::byte* posts() override { return grow(posts_, posts_bytes_); }

  void to_host(void* host, const void* device, int64_t bytes) override {
    keep(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream()));
    synchronize();
  }
  void to_device(void* device, const void* host, int64_t bytes) override {
    keep(cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream()));
    synchronize();
  }
  void copy(void* to, const void* from, int64_t bytes) override {
    keep(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream()));
  }
  void fill(void* device, int byte, int64_t bytes) override {
    keep(cudaMemsetAsync(device, byte, static_cast<size_t>(bytes), stream()));
  }

  // --- the step: [StepView | spans | pools | tokens, positions, ... | page tables, anchor writes], one copy ---
  void stage(const StepView& step) override {
    int64_t bytes = 1024 + static_cast<int64_t>(step.spans.size_bytes() + step.page_pools.size_bytes()) +
                    step.rows * int64_t{20} + static_cast<int64_t>(step.logit_rows.size_bytes());
    for (const SpanView& span : step.spans) {
      for (const auto& pages : span.pages) bytes += static_cast<int64_t>(pages.size_bytes()) + 16;
      bytes += static_cast<int64_t>(span.anchor_writes.size_bytes()) + 16;
    }
    synchronize();  // the last step's copy has been read, and its launches have run
    reserve_staging(bytes);
    used_ = 0;
    auto* view = take<StepView>(1);
    auto* spans = take<SpanView>(step.spans.size());
    StepView staged = step;
    staged.page_pools = put(step.page_pools);
    staged.tokens = put(step.tokens);
    staged.positions = put(step.positions);
    staged.row_spans = put(step.row_spans);
    staged.logit_rows = put(step.logit_rows);
    for (size_t i = 0; i < step.spans.size(); ++i) {
      SpanView span = step.spans[i];
      for (auto& pages : span.pages) pages = put(pages);
      span.anchor_writes = put(span.anchor_writes);
      spans[i] = span;
    }
    staged.spans = {reinterpret_cast<const SpanView*>(on_device(spans)), step.spans.size()};
    *view = staged;
    keep(cudaMemcpyAsync(staging_device_, staging_.data(), static_cast<size_t>(used_), cudaMemcpyHostToDevice,
                         stream()));
  }

  // --- errors ---
  void launched(int error) override { keep(static_cast<cudaError_t>(error)); }

  bool synchronize() override {
    keep(cudaStreamSynchronize(stream()));
    return first_error_ == cudaSuccess;
  }

  std::string error() const override {
    return first_error_ == cudaSuccess ? std::string()
                                       : concat("CUDA: ", cudaGetErrorString(first_error_), " on ", info_.name);
  }

  // --- graphs ---
  void begin_capture() override { keep(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal)); }

  int end_capture() override {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    keep(cudaStreamEndCapture(stream(), &graph));
    if (graph == nullptr) return -1;
    keep(cudaGraphInstantiate(&exec, graph, 0));
    cudaGraphDestroy(graph);
    if (exec == nullptr || first_error_ != cudaSuccess) return -1;
    graphs_.push_back(exec);
    return static_cast<int>(graphs_.size()) - 1;
  }

  void launch_graph(int graph) override {
    keep(cudaGraphLaunch(graphs_[static_cast<size_t>(graph)], stream()));
    ++graph_launches_;
  }
  int64_t generation() const override { return generation_; }
  int64_t graph_launches() const override { return graph_launches_; }

 private:
  cudaStream_t stream() const { return reinterpret_cast<cudaStream_t>(stream_); }

  void keep(cudaError_t status) {
    if (status != cudaSuccess && first_error_ == cudaSuccess) first_error_ = status;
  }

  void read_info(int index) {
    cudaDeviceProp properties{};
    must(cudaGetDeviceProperties(&properties, index), "device properties");
    info_.name = properties.name;
    info_.index = index;
    info_.major = properties.major;
    info_.minor = properties.minor;
    info_.sm_count = properties.multiProcessorCount;
    info_.l2_bytes = properties.l2CacheSize;
    info_.shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
    info_.total_bytes = static_cast<int64_t>(properties.totalGlobalMem);
    info_.free_bytes = free_bytes();
    cudaDriverGetVersion(&info_.driver_version);
    cudaRuntimeGetVersion(&info_.runtime_version);
  }

  void bounce(std::byte* to, const std::byte* host, int64_t rows, int64_t row_bytes, int64_t stride) {
    keep(cudaStreamSynchronize(stream()));
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(bounce_.data() + row * row_bytes, host + row * stride, static_cast<size_t>(row_bytes));
    }
    keep(cudaMemcpyAsync(to, bounce_.data(), static_cast<size_t>(rows * row_bytes), cudaMemcpyHostToDevice, stream()));
    keep(cudaStreamSynchronize(stream()));
  }

  void drop_graphs() {
    for (cudaGraphExec_t graph : graphs_) cudaGraphExecDestroy(graph);
    graphs_.clear();
    ++generation_;
  }

  void reserve_staging(int64_t bytes) {
    if (staging_.bytes() >= bytes) return;
    if (staging_device_ != nullptr) release(staging_device_);
    const int64_t size = std::max<int64_t>(bytes * 2, 1 << 16);
    staging_ = Pinned(size);
    staging_device_ = allocate(size);
    step_ = reinterpret_cast<const StepView*>(staging_device_);
    drop_graphs();
  }

  template <class T>
  T* take(size_t count) {
    used_ = (used_ + 15) / 16 * 16;
    T* at = reinterpret_cast<T*>(staging_.data() + used_);
    used_ += static_cast<int64_t>(count * sizeof(T));
    return at;
  }

  const std::byte* on_device(const void* staged) const {
    return staging_device_ + (static_cast<const std::byte*>(staged) - staging_.data());
  }

  template <class T>
  std::span<const T> put(std::span<const T> values) {
    T* at = take<T>(values.size());
    if (!values.empty()) std::memcpy(static_cast<void*>(at), values.data(), values.size_bytes());
    return {reinterpret_cast<const T*>(on_device(at)), values.size()};
  }

  CudaInfo info_;
  std::map<std::byte*, int64_t> blocks_;
  std::map<std::tuple<const std::byte*, int64_t, int64_t, int64_t>, const std::byte*> uploaded_;
  int64_t allocated_ = 0;
  Pinned bounce_;
  std::vector<Pinned> host_;
  struct Shared {
    std::byte* memory = nullptr;
    int64_t size = 0;
  };
  std::byte* grow(Shared& shared, int64_t bytes) {
    if (shared.size < bytes) {
      if (shared.memory != nullptr) release(shared.memory);
      shared = {allocate(bytes), bytes};
      drop_graphs();
    }
    return shared.memory;
  }

  Shared workspace_, posts_;
  Pinned staging_;
  std::byte* staging_device_ = nullptr;
  int64_t used_ = 0;
  std::vector<cudaGraphExec_t> graphs_;
  int64_t generation_ = 0;
  int64_t graph_launches_ = 0;
  cudaError_t first_error_ = cudaSuccess;
};

std::string why_not() {
  int driver = 0, runtime = 0, count = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (driver == 0) return "no NVIDIA driver is installed";
  if (status == cudaErrorInsufficientDriver) {
    return concat("the NVIDIA driver supports CUDA ", version(driver), ", this program needs ", version(runtime),
                  ": update the driver");
  }
  if (status != cudaSuccess) return concat("no usable device: ", cudaGetErrorString(status));
  if (count == 0) return "the NVIDIA driver sees no device";
  return "";
}

std::unique_ptr<CudaDevice> open(int index) {
  int count = 0;
  must(cudaGetDeviceCount(&count), "counting devices");
  if (index < 0 || index >= count) fail("--device cuda:", index, ": expected a device in [0, ", count, ")");
  cudaDeviceProp properties{};
  must(cudaGetDeviceProperties(&properties, index), "device properties");
  if (properties.major < kOldestMajor) {
    fail("--device cuda: ", properties.name, " has compute capability ", properties.major, ".", properties.minor,
         ", at least ", kOldestMajor, ".0 is needed");
  }
  return std::make_unique<RuntimeDevice>(index);
}

}  // namespace

const CudaBackend& cuda_backend() {
  static const CudaBackend backend{why_not, open};
  return backend;
}

}  // namespace weir
