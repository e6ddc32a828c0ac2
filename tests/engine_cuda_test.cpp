// The engine on a GPU: graphs and single launches, sequences together and alone, and what happens when the device
// fails.
#define WEIR_TEST_GPU 0
#include <functional>
#include <future>
#include <limits>

#include "engine/service.h"
#include "tests/support/serving.h"

#ifdef WEIR_CUDA_EMULATED
#include "device/cuda/emulated/runtime.h"
#endif

static const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new weir::test::NeedsGpu);

namespace weir::test {
namespace {

class Ended final : public TokenStream {
 public:
  explicit Ended(std::promise<RequestEnd>& end) : end_(end) {}
  void on_token(const SampledToken&) override {}
  void on_end(const RequestEnd& end) override { end_.set_value(end); }

 private:
  std::promise<RequestEnd>& end_;
};

class EngineCuda : public testing::TestWithParam<const char*> {
 protected:
  EngineCuda() : model_(Model::load(fixture(GetParam()))) {
    options_.sequences = 4;
    options_.tokens = 512;
    options_.rows = 64;
    options_.activations = Activations::kAuto;
    options_.kv_dtype = StateDtype::kBf16;
  }
  static Request request(uint32_t seed, int64_t tokens) {
    Request r{.prompt = {}, .max_tokens = tokens};
    for (uint32_t i = 0; i < 5 + seed * 7; ++i) r.prompt.push_back(static_cast<int32_t>((seed * 31 + i * 7) % 300));
    r.sampling.temperature = seed % 2 == 0 ? 0.f : 1.f;
    r.sampling.seed = seed;
    return r;
  }
  // A request that runs when the device fails ends with its error, and later ones are refused.
  void expect_dead_after(
      const std::function<void(CudaDevice&)>& fail, const std::function<void()>& mend = [] {}) {
    Engine engine(*model_, Serving::engine_options(options_));
    Service service(engine, {}, nullptr);
    std::promise<RequestEnd> ended;
    fail(*engine.gpu());
    RequestId id = 0;
    ASSERT_FALSE(service.submit(request(1, 20), std::make_shared<Ended>(ended), id).has_value());
    const RequestEnd end = ended.get_future().get();
    mend();
    EXPECT_EQ(end.reason, FinishReason::kError);
    EXPECT_NE(end.error.find("CUDA"), std::string::npos) << end.error;
    const auto refused = service.submit(request(2, 2), std::make_shared<Ended>(ended), id);
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->kind, SubmitRefusal::Kind::kDead);
    EXPECT_FALSE(service.alive());
  }
  std::unique_ptr<Model> model_;
  ServingOptions options_;
};

TEST_P(EngineCuda, RecordedStepsEqualSingleLaunchesAndRequestsTogetherEqualEachAlone) {
  Serving serving(*model_, options_);
  std::vector<RequestId> ids;
  for (uint32_t seed = 0; seed < 4; ++seed) ids.push_back(serving.submit(request(seed, 5)));
  serving.run();
  EXPECT_EQ(serving.scheduler.counters().most_sequences_of_a_step, 4);
  EXPECT_GT(serving.engine().gpu()->graph_launches(), 0);
  EngineOptions plain = Serving::engine_options(options_);
  plain.graphs = false;
  Engine engine(*model_, plain);
  for (uint32_t seed = 0; seed < 4; ++seed) {
    const Request r = request(seed, 5);
    GenerateOptions g;
    g.max_tokens = r.max_tokens;
    g.sampling = r.sampling;
    g.ignore_eos = true;
    EXPECT_EQ(generate(engine, r.prompt, g).tokens, serving.answer(ids[seed]).tokens) << seed;
  }
  EXPECT_EQ(engine.gpu()->graph_launches(), 0);
}

// Makes a value of one row NaN on the device, in the output of the first op.
class Poison final : public StepObserver {
 public:
  Poison(CudaDevice& device, int64_t row) : device_(device), row_(row) {}
  void after(const BoundOp&, Buffer output) override {
    if (happened_) return;
    happened_ = true;
    float* const to = output.data + row_ * output.cols + 3;
    device_.copy_rows(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(&kNan), 1, 4, 4);
    ASSERT_TRUE(device_.synchronize()) << device_.error();
  }
  bool happened() const { return happened_; }

 private:
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  CudaDevice& device_;
  int64_t row_;
  bool happened_ = false;
};

TEST_P(EngineCuda, NumbersThatAreNotFiniteEndOneRequestAlone) {
  Serving serving(*model_, options_);
  std::vector<RequestId> ids;
  for (uint32_t seed = 0; seed < 3; ++seed) ids.push_back(serving.submit(request(seed, 5)));
  ASSERT_TRUE(serving.scheduler.step());  // all prompts
  Poison poison(*serving.engine().gpu(), 1);
  ASSERT_TRUE(serving.scheduler.step(&poison));  // a row of each
  EXPECT_TRUE(poison.happened());
  const Answer& answer = serving.answer(ids[1]);
  ASSERT_TRUE(answer.ended);
  EXPECT_EQ(answer.end.reason, FinishReason::kError);
  EXPECT_NE(answer.end.error.find("a logit is not finite"), std::string::npos) << answer.end.error;
  serving.run();
  EXPECT_EQ(serving.scheduler.counters().failed, 1);
  for (const uint32_t seed : {0u, 2u}) {
    EXPECT_EQ(serving.answer(ids[seed]).tokens, alone(*model_, request(seed, 5), options_)) << seed;
  }
  const RequestId again = serving.submit(request(1, 5));
  serving.run();
  EXPECT_EQ(serving.answer(again).tokens, alone(*model_, request(1, 5), options_));
  serving.expect_nothing_held();
}

#ifdef WEIR_CUDA_EMULATED
TEST_P(EngineCuda, MemoryThatIsRefusedAtLoadIsAnErrorWithNumbers) {
  int refused = 0;
  for (int n = 1; n < 400; n = n * 3 / 2 + 1) {
    emulated::fail_allocation_after(n);
    try {
      Serving serving(*model_, options_);
    } catch (const Error& error) {
      ++refused;
      EXPECT_NE(std::string(error.what()).find("bytes are needed"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("lower --max-tokens"), std::string::npos) << error.what();
    }
    emulated::fail_allocation_after(0);
  }
  EXPECT_GE(refused, 3);
}

TEST_P(EngineCuda, ALaunchThatFailsEndsRequestsWithAnErrorAndTheServiceSaysSo) {
  expect_dead_after([](CudaDevice&) { emulated::fail_launch_after(40); }, [] { emulated::fail_launch_after(0); });
}
#else
TEST_P(EngineCuda, ACardWithoutRoomIsAnErrorWithNumbers) {
  const std::unique_ptr<CudaDevice> other = open_cuda(0);
  other->allocate(other->free_bytes() - (int64_t{64} << 20));
  try {
    Serving serving(*model_, options_);
    FAIL() << "there was room";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("CUDA"), std::string::npos) << what;
    EXPECT_NE(what.find("lower --max-tokens"), std::string::npos) << what;
  }
}

TEST_P(EngineCuda, AnErrorOfTheCardEndsRequestsWithItAndTheServiceSaysSo) {
  expect_dead_after([](CudaDevice& device) {
    std::byte* const nowhere = reinterpret_cast<std::byte*>(uintptr_t{64});
    device.copy(nowhere, nowhere + 4096, 16);
  });
}
#endif

INSTANTIATE_TEST_SUITE_P(Models, EngineCuda, testing::Values("hf/llama", "hf/kimi_linear"),
                         [](const auto& param) { return std::string(param.param).substr(3); });

}  // namespace
}  // namespace weir::test
