// The sampler of GPUs against that of CPUs: the same ids, logprobs and lists, as bits.
#include "engine/sampler_cuda.h"

#include <deque>

#include "base/error.h"
#include "engine/sampler_test_reference.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

using testing::DeviceBuffer;

class SamplerCuda : public testing::CudaCase {};

using Choice = std::optional<SampledToken>;

::testing::AssertionResult same(const Choice& expected, const Choice& found) {
  const auto differ = [] { return ::testing::AssertionFailure(); };
  if (expected.has_value() != found.has_value()) return differ() << "something expected: " << expected.has_value();
  if (!expected) return ::testing::AssertionSuccess();
  if (expected->id != found->id) return differ() << "expected id " << expected->id << ", found " << found->id;
  if (!same_bits(expected->logprob, found->logprob)) {
    return differ() << "expected logprob " << expected->logprob << ", found " << found->logprob;
  }
  const auto a = expected->top.entries(), b = found->top.entries();
  if (a.size() != b.size()) return differ() << "expected " << a.size() << " likeliest, found " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].first != b[i].first || !same_bits(a[i].second, b[i].second)) {
      return differ() << "place " << i << ": expected " << a[i].first << " (" << a[i].second << "), found "
                      << b[i].first << " (" << b[i].second << ")";
    }
  }
  return ::testing::AssertionSuccess();
}

// Rows of logits with what is asked of them.
struct Rows {
  int64_t vocab, stride;
  std::vector<float> logits;
  std::vector<Request> requests;
  std::deque<TokenHistory> histories;

  Rows(int64_t n, int64_t padding) : vocab(n), stride(n + padding) {}

  void add(const std::vector<float>& row, const Request& request) {
    logits.insert(logits.end(), row.begin(), row.end());
    logits.resize(logits.size() + static_cast<size_t>(stride - vocab), std::nanf(""));  // between rows: never read
    requests.push_back(request);
    histories.push_back(request.history());
  }
  std::vector<SampleRow> rows() const {
    std::vector<SampleRow> out;
    for (size_t i = 0; i < requests.size(); ++i) {
      const Request& r = requests[i];
      out.push_back({&r.options, &histories[i], r.position, r.generated(), r.allowed});
    }
    return out;
  }
  std::vector<Choice> on_cpu(Sampler& sampler) const {
    std::vector<Choice> out;
    for (size_t i = 0; i < requests.size(); ++i) {
      const Request& r = requests[i];
      out.push_back(
          sampler.sample(std::span(logits).subspan(i * static_cast<size_t>(stride), static_cast<size_t>(vocab)),
                         r.options, histories[i], r.position, r.generated(), r.allowed));
    }
    return out;
  }
};

// Both samplers on the rows; the logits must come back unchanged.
void expect_same(CudaDevice& device, CudaSampler& cuda, Sampler& cpu, const Rows& rows) {
  DeviceBuffer<float> logits(device, rows.logits);
  cuda.enqueue(rows.rows(), logits.data(), rows.stride);
  const std::span<const Choice> found = cuda.wait();
  const std::vector<Choice> expected = rows.on_cpu(cpu);
  ASSERT_EQ(found.size(), expected.size());
  std::vector<int32_t> ids(expected.size());
  device.to_host(ids.data(), cuda.ids(), static_cast<int64_t>(ids.size() * sizeof(int32_t)));
  for (size_t i = 0; i < expected.size(); ++i) {
    const SamplingOptions& o = rows.requests[i].options;
    ASSERT_TRUE(same(expected[i], found[i]))
        << "row " << i << " of " << rows.vocab << " logits, T " << o.temperature << ", k " << o.top_k << ", p "
        << o.top_p << ", min p " << o.min_p << ", logprobs " << o.top_logprobs;
    ASSERT_EQ(ids[i], expected[i] ? expected[i]->id : -1);
  }
  ASSERT_TRUE(same_floats(rows.logits, logits.values()));
}

TEST_F(SamplerCuda, EqualsTheCpuOnRandomRequests) {
  RandomFloats random(21);
  int nothing = 0;
  for (const int64_t n : {1, 2, 5, 31, 64, 127, 300, 1025, 4099, 9000}) {
    constexpr int32_t kRows = 16;
    const auto cuda = make_cuda_sampler(device(), n, kRows);
    Sampler cpu(n, KernelSet::kReference);
    for (int batch = 0; batch < (n > 1000 ? 4 : 12); ++batch) {
      Rows rows(n, batch % 2 == 0 ? (4 - n % 4) % 4 : 1);
      for (int64_t count = 1 + random.below(kRows); count > 0; --count) {
        Request r = some_request(random, n);
        r.options.top_logprobs = static_cast<int32_t>(random.below(23)) - 2;
        if (r.options.top_logprobs < 0) r.options.top_logprobs = -1;
        rows.add(some_logits(random, n), r);
      }
      expect_same(device(), *cuda, cpu, rows);
      nothing += static_cast<int>(std::ranges::count_if(rows.on_cpu(cpu), [](const Choice& c) { return !c; }));
    }
  }
  EXPECT_GT(nothing, 3);
}

// Logits as models give them: a few far above a wide bell.
std::vector<float> model_logits(RandomFloats& random, int64_t n) {
  std::vector<float> l(static_cast<size_t>(n));
  for (float& x : l) x = (random.next() + random.next() + random.next() + random.next()) * 1.5f - 4;
  for (int i = 0; i < 60; ++i) {
    l[static_cast<size_t>(random.below(n))] = 6 + static_cast<float>(i % 20) * 0.5f + random.next() * 0.1f;
  }
  return l;
}

TEST_F(SamplerCuda, EqualsTheCpuOnRowsOfManyBlocks) {
  RandomFloats random(22);
  constexpr int64_t kVocab = 50257;
  const auto cuda = make_cuda_sampler(device(), kVocab, 8);
  Sampler cpu(kVocab);
  for (const bool together : {false, true}) {
    Rows rows(kVocab, 3);
    for (const SamplingOptions& o : std::initializer_list<SamplingOptions>{
             {.temperature = 0, .top_logprobs = 5},
             {.temperature = 1, .seed = 1},
             {.temperature = 0.7f, .seed = 2, .top_k = 50, .top_p = 0.95f},
             {.temperature = 1, .seed = 3, .top_p = 0.9f, .top_logprobs = 20},
             {.temperature = 1.5f, .seed = 4, .top_k = 40},
             {.temperature = 1, .seed = 5, .min_p = 0.05f},
             {.temperature = 1, .seed = 6, .top_k = 20000, .top_p = 0.99f},  // more than a list holds
             {.temperature = 30, .seed = 7, .top_p = 0.5f, .presence_penalty = 1, .top_logprobs = 3}}) {
      Request r;
      r.options = o;
      r.position = 1000;
      r.output = {5, 6, 7, 5};
      rows.add(model_logits(random, kVocab), r);
      if (together && rows.requests.size() < 8) continue;
      expect_same(device(), *cuda, cpu, rows);
      rows = Rows(kVocab, 3);
    }
  }
}

TEST_F(SamplerCuda, EqualsTheCpuWhereManyLogitsAreEqual) {
  constexpr int64_t kVocab = 6000;
  const auto cuda = make_cuda_sampler(device(), kVocab, 8);
  Sampler cpu(kVocab);
  Rows rows(kVocab, 0);
  for (const SamplingOptions& o :
       std::initializer_list<SamplingOptions>{{.temperature = 0, .top_logprobs = 20},
                                              {.temperature = 1, .seed = 1, .top_k = 3},
                                              {.temperature = 1, .seed = 2, .top_p = 0.37f},
                                              {.temperature = 1, .seed = 3, .top_k = 4500, .top_p = 0.5f},
                                              {.temperature = 1, .seed = 4, .top_k = 5999, .top_logprobs = 7}}) {
    Request r;
    r.options = o;
    rows.add(std::vector<float>(kVocab, 2.5f), r);
  }
  Request ones;
  ones.options = {.temperature = 1, .seed = 5, .top_k = 5, .top_p = 0.9f, .top_logprobs = 20};
  std::vector<float> few(kVocab, -kInf);
  few[77] = few[4000] = -1;
  rows.add(few, ones);
  expect_same(device(), *cuda, cpu, rows);
}

// 2048 equal weights, of which exactly five are wanted.
TEST_F(SamplerCuda, TheLogitThatReachesTopPExactlyIsTheLast) {
  constexpr int64_t kVocab = 4100;
  const auto cuda = make_cuda_sampler(device(), kVocab, 32);
  Sampler cpu(kVocab);
  Rows rows(kVocab, 0);
  std::vector<float> logits(kVocab, -kInf);
  for (size_t i = 0; i < 2048; ++i) logits[2 * i + 3] = 1.5f;
  for (uint64_t seed = 0; seed < 32; ++seed) {
    Request r;
    r.options = {.temperature = 1, .seed = seed, .top_p = 5.f / 2048};
    rows.add(logits, r);
  }
  expect_same(device(), *cuda, cpu, rows);
}

TEST_F(SamplerCuda, GivesNothingForRowsThatAreNoNumbers) {
  constexpr int64_t kVocab = 700;
  const auto cuda = make_cuda_sampler(device(), kVocab, 8);
  Sampler cpu(kVocab);
  Rows rows(kVocab, 0);
  RandomFloats random(23);
  const auto add = [&](int64_t at, float value, SamplingOptions options, bool masked) {
    std::vector<float> l = some_logits(random, kVocab);
    if (at >= 0) l[static_cast<size_t>(at)] = value;
    if (at < 0) l.assign(l.size(), value);
    Request r;
    r.options = std::move(options);
    if (masked) {
      r.allowed.assign((kVocab + 31) / 32, 0xffffffffu);
      r.allowed[static_cast<size_t>(at / 32)] &= ~(1u << (at % 32));
    }
    rows.add(l, r);
  };
  add(699, std::nanf(""), {.temperature = 1, .top_logprobs = 2}, false);
  add(0, kInf, {.temperature = 1, .top_k = 5}, false);
  add(64, kInf, {.temperature = 0}, true);
  add(65, std::nanf(""), {.temperature = 0, .logit_bias = {{65, -1.f}}}, false);
  add(66, kInf, {.temperature = 1, .min_tokens = 5, .stop_tokens = {66, 66}}, false);
  add(-1, -kInf, {.temperature = 1, .top_p = 0.5f, .top_logprobs = 2}, false);
  add(3, -kInf, {.temperature = 1, .top_p = 0.5f, .top_logprobs = 2}, false);  // a masked id is no harm
  expect_same(device(), *cuda, cpu, rows);
  EXPECT_TRUE(rows.on_cpu(cpu).back());
}

// Lists longer than the buffers at first, twice the same ids to stop at, overflowing biases.
TEST_F(SamplerCuda, ChangesLogitsAndPutsThemBack) {
  constexpr int64_t kVocab = 5000;
  const auto cuda = make_cuda_sampler(device(), kVocab, 4);
  Sampler cpu(kVocab);
  RandomFloats random(24);
  for (int batch = 0; batch < 6; ++batch) {
    Rows rows(kVocab, 0);
    for (int i = 0; i < 4; ++i) {
      Request r;
      r.options = {.temperature = i % 2 == 0 ? 0.f : 1.f,
                   .seed = random.bits(),
                   .top_k = 30,
                   .presence_penalty = 0.4f,
                   .frequency_penalty = 0.3f,
                   .repetition_penalty = 1.1f,
                   .logit_bias = {{1, 3e38f}, {2, -3e38f}, {3, 1.f}, {4, 2.f}},
                   .min_tokens = 10000,
                   .stop_tokens = {1, 3, 1, 77},
                   .top_logprobs = i - 1};
      for (int64_t n = batch * batch * 400; n >= 0; --n) {
        (random.below(2) == 0 ? r.prompt : r.output).push_back(static_cast<int32_t>(random.below(kVocab)));
      }
      std::vector<float> l = some_logits(random, kVocab);
      l[1] = 3e38f;
      rows.add(l, r);
    }
    expect_same(device(), *cuda, cpu, rows);
  }
}

// More histories than the sampler keeps on the device, of which some grow, are cut back, copied or replaced between two
// steps, and which rows of a step may share.
TEST_F(SamplerCuda, FollowsHistoriesFromStepToStep) {
  RandomFloats random(27);
  constexpr int64_t kVocab = 1500;
  constexpr int32_t kRows = 2;
  const auto cuda = make_cuda_sampler(device(), kVocab, kRows);
  Sampler cpu(kVocab, KernelSet::kReference);
  const auto token = [&] { return static_cast<int32_t>(random.below(kVocab)); };
  std::vector<TokenHistory> histories(12);
  for (TokenHistory& history : histories) history.add(token());
  const SamplingOptions options{
      .temperature = 1, .seed = 5, .presence_penalty = 0.4f, .frequency_penalty = 0.3f, .repetition_penalty = 1.5f};
  for (int step = 0; step < 300; ++step) {
    const std::vector<float> row = some_logits(random, kVocab);
    std::vector<float> both = row;
    both.insert(both.end(), row.begin(), row.end());
    DeviceBuffer<float> logits(device(), both);
    TokenHistory& first = histories[static_cast<size_t>(random.below(step % 40 < 20 ? 3 : 12))];
    TokenHistory& second = random.below(4) == 0 ? first : histories[static_cast<size_t>(random.below(12))];
    switch (random.below(8)) {
      case 0:
        first.truncate(1 + random.below(first.length()));
        break;
      case 1:
        second = first;
        break;
      case 2:
        for (int i = 0; i < 100; ++i) first.add(token());
        break;
      default:
        first.add(token());
    }
    const SampleRow rows[kRows] = {{&options, &first, step, 1, {}}, {&options, &second, step, 1, {}}};
    cuda->enqueue(rows, logits.data(), kVocab);
    const std::span<const Choice> found = cuda->wait();
    for (size_t i = 0; i < kRows; ++i) {
      ASSERT_TRUE(same(cpu.sample(row, options, *rows[i].history, step, 1), found[i])) << "step " << step;
    }
  }
}

TEST_F(SamplerCuda, AChoiceDoesNotDependOnTheOtherRows) {
  RandomFloats random(25);
  constexpr int64_t kVocab = 2000;
  const auto cuda = make_cuda_sampler(device(), kVocab, 64);
  Rows all(kVocab, 0);
  for (int i = 0; i < 40; ++i) all.add(some_logits(random, kVocab), some_request(random, kVocab));
  DeviceBuffer<float> logits(device(), all.logits);
  const std::vector<SampleRow> rows = all.rows();
  cuda->enqueue(rows, logits.data(), kVocab);
  const std::span<const Choice> choices = cuda->wait();
  const std::vector<Choice> together(choices.begin(), choices.end());
  for (size_t i = 0; i < rows.size(); i += 3) {
    cuda->enqueue(std::span(rows).subspan(i, 1), logits.data() + static_cast<int64_t>(i) * kVocab, kVocab);
    EXPECT_TRUE(same(together[i], cuda->wait()[0])) << i;
  }
}

TEST_F(SamplerCuda, RefusesVocabulariesItsSumsCannotHold) {
  EXPECT_THROW(make_cuda_sampler(device(), 0, 1), Error);
  EXPECT_THROW(make_cuda_sampler(device(), (int64_t{1} << 22) + 1, 1), Error);
  EXPECT_THROW(make_cuda_sampler(device(), 10, 0), Error);
}

}  // namespace
}  // namespace weir
