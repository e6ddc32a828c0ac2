// weir inspect: what is in a model's files, what it needs, and what a step costs.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"

namespace weir::cli {
namespace {

struct InspectOptions {
  ModelOptions model;
  bool circuit = false;
};

void line(const std::string& label, const std::string& value) {
  std::printf("%-24s %s\n", label.c_str(), value.c_str());
}

// Tensors and their bytes, by type.
struct TypeSums {
  std::map<std::string, std::pair<int64_t, int64_t>, std::less<>> sums;
  void add(std::string_view type, int64_t tensor_bytes) {
    auto& [count, bytes] = sums[std::string(type)];
    ++count;
    bytes += tensor_bytes;
  }
};

std::string sum_text(const std::pair<int64_t, int64_t>& sum) {
  return concat(counted(sum.first, "tensor"), ", ", human_bytes(static_cast<double>(sum.second)));
}

// MXFP4 lies in two tensors of U8: codes and scales.
std::string_view stored_type(const Checkpoint& checkpoint, const Tensor& tensor) {
  static constexpr std::pair<std::string_view, std::string_view> kPairs[] = {{"_packed", "_scale"},
                                                                             {"_blocks", "_scales"}};
  for (const auto& [codes, scales] : kPairs) {
    for (const auto& [own, other] : {std::pair(codes, scales), std::pair(scales, codes)}) {
      if (tensor.dtype != Dtype::kU8 || !tensor.name.ends_with(own)) continue;
      const std::string_view stem = std::string_view(tensor.name).substr(0, tensor.name.size() - own.size());
      const Tensor* partner = checkpoint.find(concat(stem, other));
      if (partner != nullptr && partner->dtype == Dtype::kU8) return "MXFP4";
    }
  }
  return dtype_name(tensor.dtype);
}

void print_files(const ModelSource& source) {
  TypeSums types;
  int64_t files = 0, bytes = 0;
  if (const auto* checkpoint = std::get_if<Checkpoint>(&source)) {
    files = static_cast<int64_t>(checkpoint->files().size());
    bytes = checkpoint->total_bytes();
    for (const Tensor& tensor : checkpoint->tensors()) types.add(stored_type(*checkpoint, tensor), tensor.bytes);
  } else {
    const auto& gguf = std::get<GgufFile>(source);
    files = static_cast<int64_t>(gguf.files());
    bytes = gguf.total_bytes();
    line("format", concat("GGUF version ", gguf.version(), ", ",
                          counted(static_cast<int64_t>(gguf.metadata().fields().size()), "key")));
    for (const GgufTensor& tensor : gguf.tensors()) types.add(tensor.type->name, tensor.bytes);
  }
  line("weights", concat(counted(files, "file"), ", ", human_bytes(static_cast<double>(bytes))));
  for (const auto& [type, sum] : types.sums) line("  " + type, sum_text(sum));
}

// What the files hold and this engine leaves alone.
void print_skipped(const Model& model) {
  for (const std::string& prefix : model.spec.skipped) {
    std::pair<int64_t, int64_t> sum;
    const auto add = [&](const auto& tensor) {
      if (!tensor.name.starts_with(prefix)) return;
      ++sum.first;
      sum.second += tensor.bytes;
    };
    std::visit([&](const auto& source) { std::ranges::for_each(source.tensors(), add); }, model.files);
    if (sum.first > 0) line("not used", concat(one_line(prefix), "*: ", sum_text(sum)));
  }
}

void print_model(const ModelSpec& spec) {
  int64_t attention = 0, mla = 0, kda = 0, gdn = 0, moe = 0;
  for (const LayerSpec& layer : spec.layers) {
    attention += std::holds_alternative<AttentionMixer>(layer.mixer);
    mla += std::holds_alternative<MlaMixer>(layer.mixer);
    kda += std::holds_alternative<KdaMixer>(layer.mixer);
    gdn += std::holds_alternative<GdnMixer>(layer.mixer);
    moe += std::holds_alternative<MoeFfn>(layer.ffn);
  }
  line("family", spec.family);
  std::string kinds;
  for (const auto& [count, kind] :
       {std::pair(attention, "attention"), {mla, "MLA"}, {kda, "KDA"}, {gdn, "Gated DeltaNet"}}) {
    if (count > 0) kinds += concat(kinds.empty() ? "" : ", ", count, " ", kind);
  }
  line("layers", concat(spec.layers.size(), ": ", kinds, moe > 0 ? concat("; ", moe, " with experts") : ""));
  line("hidden, vocabulary", concat(spec.hidden, ", ", spec.vocab));
  line("context", concat(spec.max_positions, " tokens"));
}

void print_state(const StateLayout& layout, int64_t weight_bytes, int64_t context) {
  double per_token = 0, journal = 0, windows = 0;
  for (const StateLayout::Group& group : layout.groups()) {
    const auto page = static_cast<double>(group.page_bytes);
    if (group.retention == Retention::kJournal) {
      journal = page;
    } else if (group.retention == Retention::kWindow) {
      const int64_t pages = (group.window + 2 * kPagePositions - 2) / kPagePositions;  // at most, between steps
      windows += page * static_cast<double>(pages);
      line(concat("pages of window ", group.window),
           concat(human_bytes(page), " each, at most ", pages, " a sequence"));
    } else {
      per_token += page / kPagePositions;
    }
  }
  const auto anchor = static_cast<double>(layout.anchor_bytes());
  line("state per token", human_bytes(per_token));
  if (anchor > 0) line("anchor", human_bytes(anchor));
  if (journal > 0) line("journal page", human_bytes(journal));
  const double fixed = 2 * (anchor + journal) + windows;
  if (fixed > 0) line("state per sequence", concat(human_bytes(fixed), " at most, besides its tokens"));
  const auto free = static_cast<double>(available_memory());
  line("memory available", human_bytes(free));
  const double left = free - static_cast<double>(weight_bytes);
  if (left <= 0) {
    line("fits", "weights are larger than the memory: they will be read from disk again and again");
  } else if (per_token > 0) {
    const double tokens = std::max(0.0, left - fixed) / per_token;
    const auto full = tokens / static_cast<double>(context);
    line("fits", full >= 1
                     ? concat("weights and ", counted(static_cast<int64_t>(full), "sequence"), " of the whole context")
                     : concat("weights and one sequence of ", counted(static_cast<int64_t>(tokens), "token")));
  }
}

void print_circuit(const Circuit& circuit, int32_t rows) {
  std::printf(
      "\nbytes that each op reads and writes for one row at position 0, its operations for that row, and for %s from "
      "position 0\n",
      counted(rows, "row").c_str());
  std::printf("%-44s %14s %14s %12s %14s\n", "op", "weight bytes", "state bytes", "MFLOP",
              concat("MFLOP @", rows).c_str());
  Cost one, many;
  for (size_t i = 0; i < circuit.size(); ++i) {
    const Cost cost = circuit.op(i).cost(1, 0);
    const Cost wide = circuit.op(i).cost(rows, rows - 1);
    std::printf("%-44s %14lld %14lld %12.3f %14.3f\n", circuit.op(i).name().c_str(),
                static_cast<long long>(cost.weight_bytes), static_cast<long long>(cost.state_bytes), cost.flops * 1e-6,
                wide.flops * 1e-6);
    one += cost;
    many += wide;
  }
  std::printf("%-44s %14lld %14lld %12.3f %14.3f\n", "all", static_cast<long long>(one.weight_bytes),
              static_cast<long long>(one.state_bytes), one.flops * 1e-6, many.flops * 1e-6);
}

void inspect(const InspectOptions& options) {
  ModelOptions on_cpu = options.model;  // nothing is computed
  on_cpu.device = "cpu";
  EngineOptions engine_options = on_cpu.engine_options();
  ModelSource source = open_model(options.model.model);
  line("model", one_line(options.model.model));
  print_files(source);
  std::fflush(stdout);  // an error in what follows comes after it
  const std::unique_ptr<Model> model = Model::load(std::move(source));
  CpuDevice device(1, engine_options.kernels);
  const std::unique_ptr<Circuit> circuit =
      compile(model->spec, device,
              {.max_rows = engine_options.max_batch_rows, .max_logit_rows = 1, .kv_dtype = engine_options.kv_dtype});
  print_model(model->spec);
  print_skipped(*model);
  print_state(circuit->layout(), model->weight_bytes(), model->spec.max_positions);
  line("buffers", concat(human_bytes(static_cast<double>(circuit->buffer_bytes())), " for steps of ",
                         counted(engine_options.max_batch_rows, "row")));
  if (options.circuit) print_circuit(*circuit, engine_options.max_batch_rows);
}

}  // namespace

void add_inspect(CLI::App& app) {
  CLI::App* command = app.add_subcommand("inspect", "what is in a model's files and what it needs");
  const auto options = std::make_shared<InspectOptions>();
  options->model.add_to(*command);
  command->add_flag("--circuit", options->circuit, "list every op of a step with bytes and FLOPs");
  command->callback([options] { inspect(*options); });
}

}  // namespace weir::cli
