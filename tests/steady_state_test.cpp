// Steps of running requests allocate nothing: counted by the global operator new.
#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/support/serving.h"

namespace {
std::atomic<int64_t> allocations{0};
std::atomic<bool> counting{false};

void* counted(std::size_t bytes) {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes > 0 ? bytes : 1)) return p;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace weir::test {
namespace {

// Counts tokens without keeping them.
class Counter final : public RequestSink {
 public:
  void on_token(RequestId, const SampledToken&) override { ++tokens; }
  void on_end(RequestId, const RequestEnd&) override { ++ended; }
  int64_t tokens = 0, ended = 0;
};

class SteadyState : public testing::TestWithParam<const char*> {};

TEST_P(SteadyState, SixtyFourDecodingSequencesAllocateNothing) {
  const std::unique_ptr<Model> model = Model::load(fixture(GetParam()));
  ServingOptions options;
  options.sequences = 64;
  options.tokens = 64 * 320;
  options.anchors = 256;
  options.threads = 2;
  options.scheduler.cache.spacing = 1 << 20;  // a restore point that is kept lists its pages
  Engine engine(*model, Serving::engine_options(options));
  Counter sink;
  TraceRecorder trace;
  Scheduler scheduler(engine, options.scheduler, sink, nullptr, &trace);
  for (int i = 0; i < 64; ++i) {
    Request request{.prompt = {}, .max_tokens = 256};
    for (int k = 0; k < 3 + i % 30; ++k) request.prompt.push_back((7 * i + 3 * k) % 200);
    request.sampling.temperature = i % 2 == 0 ? 0.f : 0.8f;
    request.sampling.top_p = i % 4 == 1 ? 0.9f : 1.f;
    request.sampling.seed = static_cast<uint64_t>(i);
    ASSERT_EQ(scheduler.submit(static_cast<RequestId>(i + 1), std::move(request)), "");
  }
  // Until all are decoding and every list has its size: two chunks of 16 rows, a ring of records.
  while (scheduler.counters().decode_rows < 64 * 96) ASSERT_TRUE(scheduler.step());
  const int64_t before = sink.tokens;
  allocations = 0;
  counting = true;
  for (int i = 0; i < 64; ++i) scheduler.step();
  counting = false;
  EXPECT_EQ(sink.ended, 0);
  EXPECT_EQ(sink.tokens - before, 64 * 64);
  EXPECT_EQ(allocations, 0);
  EXPECT_GT(scheduler.cache().counters().inserted_nodes, 64 * 4) << "chunks were sealed on the way";
}

INSTANTIATE_TEST_SUITE_P(Models, SteadyState,
                         testing::Values("hf/llama", "hf/kimi_linear", "kimi_k3/k3-tiny", "hf/gpt_oss"),
                         [](const testing::TestParamInfo<const char*>& param) {
                           std::string name = param.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace weir::test
