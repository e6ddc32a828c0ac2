// What the layers of a model remember, declared while a circuit is compiled: rows of pages with a retention, and parts
// of an anchor (docs/architecture.md 1.3, 1.4). Layers declare; the engine allocates, restores, rolls back and frees.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/step_view.h"

namespace weir {

enum class Retention {
  kForever,  // K/V rows, MLA latents: as long as the sequence
  kJournal,  // rows of linear layers: until the next anchor is accepted
  kWindow,   // K/V rows of layers with a sliding window: until no row that may still be computed sees them
};

class StateLayout {
 public:
  struct Part {
    std::string name;
    int64_t bytes = 0;  // a row of a page, or the part of an anchor
  };
  struct Group {
    Retention retention = Retention::kForever;
    int64_t window = 0;      // kWindow: positions that a row sees, its own included
    int64_t page_bytes = 0;  // of 16 positions, all layers
    int64_t row_bytes = 0;   // of one position, without padding
    std::vector<Part> parts;
  };

  // Declares `row_bytes` per position. Rows of a part are contiguous: position p at offset + (p % 16) * row_bytes.
  // Layers with the same retention and window share a group.
  PageField add_page(std::string name, Retention retention, int64_t row_bytes, int64_t window = 0);
  AnchorField add_anchor(std::string name, int64_t bytes);

  const std::vector<Group>& groups() const { return groups_; }
  int group_of(Retention retention, int64_t window = 0) const;  // -1 when no layer declared one
  int64_t anchor_bytes() const { return anchor_bytes_; }
  const std::vector<Part>& anchor_parts() const { return anchor_parts_; }

 private:
  std::vector<Group> groups_;
  std::vector<Part> anchor_parts_;
  int64_t anchor_bytes_ = 0;
};

}  // namespace weir
