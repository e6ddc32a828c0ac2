// Names of tensors in GGUF files. Families ask for parts by the names of the published checkpoints, which say more; a
// table per family leads from those to GGUF's.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weir {

// "self_attn.q_proj" -> "attn_q", for any suffix ".weight" or ".bias"; or whole names, "self_attn.dt_bias" ->
// "ssm_dt.bias". Names in "model.layers.N." are looked up without that prefix, which becomes "blk.N.". A name with
// several entries may be spelled in any of these ways.
struct GgufName {
  std::string_view published;
  std::string_view gguf;
};

// The names that a published name may have, in the table's order; none where GGUF has no such tensor.
std::vector<std::string> gguf_names(std::span<const GgufName> table, std::string_view published);

}  // namespace weir
