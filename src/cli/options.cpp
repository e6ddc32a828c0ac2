#include "cli/options.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "formats/json.h"
#include "models/builtin.h"

namespace weir::cli {

CLI::Validator unsigned_64() {
  return CLI::Validator(
      [](std::string& text) {
        uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool good = error == std::errc() && end == text.data() + text.size();
        return good ? std::string() : "expected an integer from 0 to 18446744073709551615, found " + printable(text);
      },
      "UINT64");
}

CLI::Validator finite() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool good = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
        return good ? std::string() : "expected a number, found " + printable(text);
      },
      "");
}

void ModelOptions::add_to(CLI::App& app, Model needed) {
  CLI::Option* option = app.add_option("MODEL", model, "folder with config.json and safetensors files, or a GGUF file");
  if (needed == Model::kNeeded) {
    option->required();
  } else {
    model = kBuiltinModel;
    option->default_str("the program's own small Kimi K3");
  }
  app.add_option("--threads", threads, "threads (default: the processors this process may use)")
      ->check(CLI::Range(1, 1024));
  add_engine_to(app);
}

void ModelOptions::add_engine_to(CLI::App& app) {
  add_device_option(app, device, &no_graphs);
  app.add_option("--max-batch-rows", max_batch_rows, "rows computed in one step (default: 512, on a GPU 2048)")
      ->check(CLI::Range(1, 65536));
  app.add_option("--kv-dtype", kv_dtype, "stored K, V and latents: auto (f16, on a GPU bf16), f32, f16, bf16")
      ->check(CLI::IsMember({"auto", "f32", "f16", "bf16"}))
      ->capture_default_str();
  app.add_option(
         "--activations", activations,
         "auto (8-bit rows for integer formats; on a GPU bf16), f32 (every product exact), q8 (8-bit rows for all)")
      ->check(CLI::IsMember({"auto", "f32", "q8"}))
      ->capture_default_str();
  app.add_option("--kernels", kernels, "auto, reference, avx2 or avx512")
      ->check(CLI::IsMember({"auto", "reference", "avx2", "avx512"}))
      ->capture_default_str();
}

namespace {

StateDtype parse_kv_dtype(const std::string& name, bool gpu) {
  if (name == "f32") return StateDtype::kF32;
  if (name == "f16") return StateDtype::kF16;
  if (name == "bf16" && !gpu) fail("--kv-dtype bf16: expected auto, f32 or f16 on the CPU");
  if (name != "auto" && name != "bf16") fail("--kv-dtype: expected auto, f32, f16 or bf16, found ", printable(name));
  return gpu ? StateDtype::kBf16 : StateDtype::kF16;
}

}  // namespace

EngineOptions ModelOptions::engine_options() const {
  EngineOptions options;
  options.gpu = parse_device(device);
  options.graphs = !no_graphs;
  options.threads = threads > 0 ? threads : default_threads();
  options.kernels = parse_kernel_set(kernels);
  constexpr int32_t kRowsOnCpu = 512, kRowsOnGpu = 2048;  // a GPU's products of more rows cost less for each
  options.max_batch_rows = max_batch_rows > 0 ? max_batch_rows : options.gpu >= 0 ? kRowsOnGpu : kRowsOnCpu;
  if (activations == "auto") {
    options.activations = Activations::kAuto;
  } else if (activations == "f32") {
    options.activations = Activations::kF32;
  } else if (activations == "q8") {
    options.activations = Activations::kQ8;
  } else {
    fail("--activations: expected auto, f32 or q8, found ", printable(activations));
  }
  const bool gpu = options.gpu >= 0;
  if (gpu && options.activations == Activations::kQ8) fail("--activations q8: expected auto or f32 on a GPU");
  options.kv_dtype = parse_kv_dtype(kv_dtype, gpu);
  return options;
}

void add_device_option(CLI::App& app, std::string& device, bool* no_graphs) {
  app.add_option("--device", device,
                 "auto (an NVIDIA GPU where there is one), cpu, cuda, or cuda:N for the GPU number N")
      ->capture_default_str();
  if (no_graphs != nullptr) app.add_flag("--no-graphs", *no_graphs, "GPU: launch every kernel by itself");
}

int parse_device(const std::string& device) {
  if (device == "cpu") return -1;
  if (device == "auto") return why_no_cuda().empty() ? 0 : -1;
  int index = 0;
  if (device.starts_with("cuda:")) {
    const char* end = device.data() + device.size();
    const auto [stop, error] = std::from_chars(device.data() + 5, end, index);
    if (error != std::errc() || stop != end || index < 0) {
      fail("--device: expected auto, cpu, cuda or cuda:N, found ", printable(device));
    }
  } else if (device != "cuda") {
    fail("--device: expected auto, cpu, cuda or cuda:N, found ", printable(device));
  }
  if (const std::string why = why_no_cuda(); !why.empty()) fail("--device ", device, ": ", why);
  return index;
}

std::string read_input(const std::string& path, int64_t limit) {
  const bool standard = path == "-";
  const std::string name = standard ? "standard input" : path;
  const int file = standard ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string text;
  char bytes[65536];
  ssize_t n = file < 0 ? -1 : 0;
  while (file >= 0) {
    n = ::read(file, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(bytes, static_cast<size_t>(n));
    if (static_cast<int64_t>(text.size()) > limit) break;
  }
  const int error = errno;
  if (file >= 0 && !standard) close(file);
  if (n < 0) fail(name, ": can't be read: ", std::strerror(error));
  if (static_cast<int64_t>(text.size()) > limit) fail(name, ": more than ", limit, " bytes");
  return text;
}

std::vector<int32_t> read_tokens(const std::string& path, int64_t vocab, int64_t max_tokens) {
  // A generous 24 bytes a token: a larger file cannot be a prompt of this model.
  JsonLimits limits;
  limits.max_bytes = std::min(limits.max_bytes, 24 * max_tokens + 4096);
  const std::string name = path == "-" ? "standard input" : path;
  const boost::json::value value = parse_json(read_input(path, limits.max_bytes), name, limits);
  if (!value.is_array()) fail(name, ": expected a JSON array of token ids, found another value");
  const boost::json::array& array = value.get_array();
  if (array.empty()) fail(name, ": expected at least one token id, found an empty array");
  if (static_cast<int64_t>(array.size()) > max_tokens) {
    fail(name, ": expected at most ", max_tokens, " tokens, the model's context, found ", array.size());
  }
  std::vector<int64_t> ids;
  ids.reserve(array.size());
  for (const boost::json::value& element : array) {
    boost::json::error_code error;
    ids.push_back(element.to_number<int64_t>(error));
    if (error || element.is_double()) {
      fail(name, ": element ", ids.size() - 1, ": expected an integer, found ",
           printable(boost::json::serialize(element)));
    }
  }
  validate_tokens(ids, vocab, name);
  return {ids.begin(), ids.end()};
}

std::string human_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  int unit = 0;
  while (bytes >= 1000 && unit < 5) {
    bytes /= 1000;
    ++unit;
  }
  return concat(decimals(bytes, unit == 0 ? 0 : bytes < 10 ? 2 : bytes < 100 ? 1 : 0), " ", kUnits[unit]);
}

std::string counted(int64_t count, std::string_view noun) { return concat(count, " ", noun, count == 1 ? "" : "s"); }

std::string decimals(double value, int places) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", places, value);
  return text;
}

double per_second(int64_t count, double ms) { return ms > 0 ? static_cast<double>(count) * 1e3 / ms : 0; }

}  // namespace weir::cli
