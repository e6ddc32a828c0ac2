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

void print_files(const Model& model) {
  TypeSums types;
  size_t files = 0;
  if (const Checkpoint* checkpoint = model.checkpoint()) {
    files = checkpoint->files().size();
    for (const Tensor& tensor : checkpoint->tensors()) types.add(dtype_name(tensor.dtype), tensor.bytes);
  }
  if (const GgufFile* gguf = model.gguf()) {
    files = static_cast<size_t>(gguf->files());
    line("format", concat("GGUF version ", gguf->version(), ", ", gguf->metadata().fields().size(), " keys"));
    for (const GgufTensor& tensor : gguf->tensors()) types.add(tensor.type->name, tensor.bytes);
  }
  line("files", concat(files, ", ", human_bytes(static_cast<double>(model.weight_bytes()))));
  for (const auto& [type, sum] : types.sums) {
    line("  " + type, concat(sum.first, " tensors, ", human_bytes(static_cast<double>(sum.second))));
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
  line("layers", concat(spec.layers.size(), ": ", attention, " attention, ", mla, " MLA, ", kda, " KDA, ", gdn,
                        " Gated DeltaNet; ", moe, " with experts"));
  line("hidden, vocabulary", concat(spec.hidden, ", ", spec.vocab));
  line("context", concat(spec.max_positions, " tokens"));
  for (const std::string& prefix : spec.skipped) {
    if (spec.skipped.size() <= 4) line("skipped", prefix + "*");
  }
}

void print_state(const StateLayout& layout, int64_t weight_bytes, int64_t context) {
  double per_token = 0, journal = 0;
  for (const StateLayout::Group& group : layout.groups()) {
    const auto page = static_cast<double>(group.page_bytes);
    if (group.retention == Retention::kJournal) {
      journal = page;
    } else {
      per_token += page / kPagePositions;
    }
  }
  const auto anchor = static_cast<double>(layout.anchor_bytes());
  line("state per token", human_bytes(per_token));
  line("anchor", human_bytes(anchor));
  line("journal page", human_bytes(journal));
  line("state per sequence", concat(human_bytes(2 * (anchor + journal)), " at most, besides its tokens"));
  const auto free = static_cast<double>(available_memory());
  line("memory available", human_bytes(free));
  const double left = free - static_cast<double>(weight_bytes);
  if (left <= 0) {
    line("fits", "weights are larger than the memory: they will be read from disk again and again");
  } else if (per_token > 0) {
    const double tokens = std::max(0.0, left - 2 * (anchor + journal)) / per_token;
    const auto full = tokens / static_cast<double>(context);
    line("fits", full >= 1 ? concat("weights and ", decimals(std::floor(full), 0), " sequences of the whole context")
                           : concat("weights and one sequence of ", static_cast<int64_t>(tokens), " tokens"));
  }
}

void print_circuit(const Circuit& circuit, int32_t rows) {
  std::printf("\n%-44s %14s %14s %12s %14s\n", "op", "weight bytes", "state bytes", "MFLOP",
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
  std::printf("%-44s %14lld %14lld %12.3f %14.3f\n", "one row at position 0", static_cast<long long>(one.weight_bytes),
              static_cast<long long>(one.state_bytes), one.flops * 1e-6, many.flops * 1e-6);
}

void inspect(const InspectOptions& options) {
  EngineOptions engine_options = options.model.engine_options();
  const std::unique_ptr<Model> model = Model::load(options.model.model);
  CpuDevice device(1, engine_options.kernels);
  const std::unique_ptr<Circuit> circuit =
      compile(model->spec, device,
              {.max_rows = engine_options.max_batch_rows, .max_logit_rows = 1, .kv_dtype = engine_options.kv_dtype});
  line("model", options.model.model);
  print_model(model->spec);
  print_files(*model);
  print_state(circuit->layout(), model->weight_bytes(), model->spec.max_positions);
  line("buffers", concat(human_bytes(static_cast<double>(circuit->buffer_bytes())), " for steps of ",
                         engine_options.max_batch_rows, " rows"));
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
