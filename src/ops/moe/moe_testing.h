// What tests of moe share: experts of random weights with rows and a routing.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>

#include "base/math.h"
#include "base/number.h"
#include "formats/quant.h"
#include "ops/linear/linear.h"
#include "ops/moe/moe.h"
#include "ops/simd/kernel_test.h"
#include "ops/simd/lanes_ref.h"

namespace weir::moe_testing {

// Random values in a format, and the same values as floats.
struct Matrix {
  WeightView view;
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  std::vector<float> values;  // [out, in]

  Matrix(WeightFormat format, int64_t out, int64_t in, RandomFloats& random) {
    view = {.format = format, .out = out, .in = in};
    values.resize(static_cast<size_t>(out * in));
    view.row_bytes = weight_row_bytes(format, in);
    data.resize(static_cast<size_t>(out * view.row_bytes));
    if (format == WeightFormat::kMxfp4) {
      view.scale_row_bytes = in / 32;
      scales.resize(static_cast<size_t>(out * in / 32));
      for (std::byte& s : scales) s = static_cast<std::byte>(118 + random.below(10));
      scales[0] = std::byte{0};  // 2^-127
      for (std::byte& b : data) b = static_cast<std::byte>(random.bits());
    }
    if (format == WeightFormat::kE4m3) {
      const int64_t across = (in + 127) / 128;
      view.scale_rows = view.scale_cols = 128;
      view.scale_row_bytes = across * 4;
      scales.resize(static_cast<size_t>((out + 127) / 128 * view.scale_row_bytes));
      for (size_t i = 0; i < scales.size() / 4; ++i) reinterpret_cast<float*>(scales.data())[i] = random.next() * 0.1f;
    }
    view.data = data.data();
    view.scales = scales.empty() ? nullptr : scales.data();
    if ((weight_block(format).elements == 1 && format != WeightFormat::kE4m3) || format == WeightFormat::kMxfp4) {
      for (size_t i = 0; i < values.size(); ++i) set(i, random.next());
      return;
    }
    for (std::byte& b : data) b = static_cast<std::byte>(random.bits() % 0x30);  // as halves: below 0.13
    for (int64_t o = 0; o < out; ++o) dequantize(view, o, 0, in, values.data() + o * in);
  }

 private:
  void set(size_t i, float value) {
    uint16_t* half = reinterpret_cast<uint16_t*>(data.data());
    switch (view.format) {
      case WeightFormat::kF32:
        values[i] = value;
        reinterpret_cast<float*>(data.data())[i] = value;
        break;
      case WeightFormat::kBf16:
        half[i] = f32_to_bf16(value);
        values[i] = bf16_to_f32(half[i]);
        break;
      case WeightFormat::kF16:
        half[i] = f32_to_f16(value);
        values[i] = f16_to_f32(half[i]);
        break;
      case WeightFormat::kMxfp4: {
        const uint8_t byte = static_cast<uint8_t>(data[i / 2]);
        values[i] = kE2m1[i % 2 == 0 ? byte & 15 : byte >> 4] * e8m0_to_f32(static_cast<uint8_t>(scales[i / 32]));
        break;
      }
      default:
        break;
    }
  }
};

struct Shape {
  int64_t experts, in, inter, out, top_k, rows;
};

struct Problem {
  Shape shape;
  std::vector<Matrix> matrices;  // gate, up, down of every expert
  std::vector<float> x, weights;
  std::vector<float> gate_bias, up_bias, down_bias;  // empty: none
  std::vector<float> addend;                         // [rows + 1, out]; empty: none
  std::vector<int32_t> ids;
  MoeArgs args;

  Problem(const Shape& s, const std::vector<WeightFormat>& formats, GluFunction act, uint64_t seed) : shape(s) {
    RandomFloats random(seed);
    matrices.reserve(static_cast<size_t>(s.experts * 3));
    size_t next = 0;
    const auto format = [&] { return formats[next++ % formats.size()]; };
    for (int64_t e = 0; e < s.experts; ++e) {
      matrices.emplace_back(format(), s.inter, s.in, random);
      matrices.emplace_back(format(), s.inter, s.in, random);
      matrices.emplace_back(format(), s.out, s.inter, random);
      args.experts.push_back({matrices.end()[-3].view, matrices.end()[-2].view, matrices.end()[-1].view});
    }
    x = random.take((s.rows + 1) * (s.in + 3));
    weights = random.take((s.rows + 1) * s.top_k);
    std::vector<int32_t> all(static_cast<size_t>(s.experts));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t r = 0; r <= s.rows; ++r) {
      for (int64_t k = 0; k < s.top_k; ++k)
        std::swap(all[static_cast<size_t>(k)], all[static_cast<size_t>(k + random.below(s.experts - k))]);
      std::sort(all.begin(), all.begin() + s.top_k);
      ids.insert(ids.end(), all.begin(), all.begin() + s.top_k);
    }
    args.in = s.in;
    args.inter = s.inter;
    args.out = s.out;
    args.top_k = s.top_k;
    args.act = act;
    args.x = x.data();
    args.x_stride = s.in + 3;
    args.ids = ids.data();
    args.weights = weights.data();
    args.y_stride = s.out + 1;
    args.max_rows = static_cast<int32_t>(std::max<int64_t>(s.rows, 1));
  }

  void add_biases() {
    RandomFloats random(99);
    gate_bias = random.take(shape.experts * shape.inter);
    up_bias = random.take(shape.experts * shape.inter);
    down_bias = random.take(shape.experts * shape.out);
    args.gate_bias = gate_bias.data();
    args.up_bias = up_bias.data();
    args.down_bias = down_bias.data();
  }

  void add_addend() {
    RandomFloats random(98);
    addend = random.take((shape.rows + 1) * shape.out);
    args.addend = addend.data();
    args.addend_stride = shape.out;
  }

  std::vector<float> run(CpuDevice& device) {
    std::vector<float> y(static_cast<size_t>((shape.rows + 1) * args.y_stride), -7.f);
    args.y = y.data();
    StepView step;
    step.rows = static_cast<int32_t>(shape.rows);
    bind_moe(device, "moe", args)->run(step);
    return y;
  }
  std::vector<float> run(KernelSet set, int threads) {
    CpuDevice device(threads, set);
    return run(device);
  }

  // Row by row and expert by expert, from the values; shares nothing with the op but the elementwise functions.
  std::vector<float> naive() const {
    std::vector<float> y(static_cast<size_t>((shape.rows + 1) * args.y_stride), -7.f);
    for (int64_t r = 0; r < shape.rows; ++r) {
      std::vector<float> sum(static_cast<size_t>(shape.out), 0.f);
      for (int64_t k = 0; k < shape.top_k; ++k) {
        const size_t e = static_cast<size_t>(ids[static_cast<size_t>(r * shape.top_k + k)]);
        const float* row = x.data() + r * args.x_stride;
        const Activations a = args.activations;
        std::vector<float> g = product(matrices[e * 3], row, a), u = product(matrices[e * 3 + 1], row, a);
        add(g, gate_bias, e);
        add(u, up_bias, e);
        std::vector<float> h(g.size());
        for (size_t i = 0; i < h.size(); ++i) h[i] = glu(g[i], u[i]);
        std::vector<float> z = product(matrices[e * 3 + 2], h.data(), a);
        add(z, down_bias, e);
        const float w = weights[static_cast<size_t>(r * shape.top_k + k)];
        for (size_t d = 0; d < z.size(); ++d) sum[d] = math::fma(w, z[d], sum[d]);
      }
      if (!addend.empty()) {
        for (size_t d = 0; d < sum.size(); ++d) sum[d] += addend[static_cast<size_t>(r * shape.out) + d];
      }
      std::copy(sum.begin(), sum.end(), y.begin() + r * args.y_stride);
    }
    return y;
  }

  float glu(float g, float u) const {
    const GluFunction& f = args.act;
    if (f.kind == ElementwiseKind::kSwiGlu) return (g * math::sigmoid(g)) * u;
    if (f.kind == ElementwiseKind::kClampedSwiGlu) {
      const float gate = std::min(g, f.linear_beta);
      return (std::clamp(u, -f.linear_beta, f.linear_beta) + 1) * (gate * math::sigmoid(gate * f.beta));
    }
    if (f.kind == ElementwiseKind::kGeGlu) {
      return (g * math::sigmoid(kGeluSlope * std::fma(kGeluCubic, (g * g) * g, g))) * u;
    }
    const float up = f.linear_beta == 0 ? u : f.linear_beta * math::tanh(u / f.linear_beta);
    return ((f.beta * math::tanh(g / f.beta)) * math::sigmoid(g)) * up;
  }

 private:
  static std::vector<float> product(const Matrix& w, const float* v, Activations activations) {
    std::vector<float> out(static_cast<size_t>(w.view.out));
    const RowCoding coding = row_coding(w.view.format, activations);
    if (coding != RowCoding::kNone) {
      const Mapping coded(coded_row_layout(coding, w.view.in).bytes);
      encode_row_kernel(KernelSet::kReference)(coding, v, w.view.in, coded.data());
      if (coding == RowCoding::kRounded) {
        linear_kernel(KernelSet::kReference)(w.view, 0, w.view.out, coded.as<float>().data(), w.view.in, 1, out.data(),
                                             w.view.out, nullptr);
        return out;
      }
      coded_linear_kernel(KernelSet::kReference)(w.view, 0, w.view.out, {coded.data(), coded.bytes()}, 1, out.data(),
                                                 w.view.out, nullptr);
      return out;
    }
    for (size_t o = 0; o < out.size(); ++o) {
      const float* row = w.values.data() + o * static_cast<size_t>(w.view.in);
      out[o] = dot_lanes(
          w.view.in, [&](int64_t k) { return row[k]; }, [&](int64_t k) { return v[k]; });
    }
    return out;
  }
  static void add(std::vector<float>& y, const std::vector<float>& bias, size_t expert) {
    for (size_t i = 0; !bias.empty() && i < y.size(); ++i) y[i] += bias[expert * y.size() + i];
  }
};

inline constexpr GluFunction kSwiGlu{};
inline constexpr GluFunction kSitu{ElementwiseKind::kSitu, 4.f, 25.f};
inline constexpr GluFunction kGeGlu{ElementwiseKind::kGeGlu};
inline constexpr GluFunction kClamped{ElementwiseKind::kClampedSwiGlu, 1.702f, 0.7f};

}  // namespace weir::moe_testing
