// Tables of token histories in device memory, for penalties. A history grows by a token a step: what has changed is
// sent, and a whole table only once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cuda_device.h"
#include "engine/sampler_history.h"

namespace weir::sampling {

// A place of a table. Of ids that penalties don't concern any more, as of empty places, id is -1.
struct Penalised {
  int32_t id;
  int32_t in_output;
};

class DeviceHistories {
 public:
  struct Update {
    Penalised* to;
    Penalised value;
  };

  // Of as many histories at least; of others the copies that were not used for the longest time make room.
  DeviceHistories(CudaDevice& device, size_t most) : device_(device), most_(most) {}
  ~DeviceHistories() {
    for (const Copy& copy : copies_) device_.release(reinterpret_cast<std::byte*>(copy.table));
  }
  DeviceHistories(const DeviceHistories&) = delete;
  DeviceHistories& operator=(const DeviceHistories&) = delete;

  // A step's calls: tables() of its histories, then the updates that make the tables on the device what these say.
  void begin_step() {
    ++step_;
    updates_.clear();
  }
  const Penalised* table(const TokenHistory& history) {
    Copy& copy = copy_of(history);
    const std::span<const TokenHistory::Entry> table = history.table();
    if (copy.version != history.table_version()) {
      for (size_t place = 0; place < table.size(); ++place) update(copy, table, place);
    } else {
      for (const int32_t token : history.tokens().subspan(copy.length)) update(copy, table, history.place_of(token));
    }
    copy.version = history.table_version();
    copy.length = static_cast<size_t>(history.length());
    copy.step = step_;
    return copy.table;
  }
  std::span<const Update> updates() const { return updates_; }

 private:
  struct Copy {
    uint64_t version = 0;  // that is on the device; 0: none
    size_t length = 0;     // of the history then
    int64_t step = 0;      // that used it last
    size_t places = 0;
    Penalised* table = nullptr;
  };

  Copy& copy_of(const TokenHistory& history) {
    const size_t places = history.table().size();
    const auto same = [&](const Copy& copy) { return copy.version == history.table_version(); };
    // Mostly rows come in the order of the step before.
    if (++last_found_ < copies_.size() && same(copies_[last_found_])) return copies_[last_found_];
    if (const auto found = std::ranges::find_if(copies_, same); found != copies_.end()) {
      last_found_ = static_cast<size_t>(found - copies_.begin());
      return *found;
    }
    if (copies_.size() < most_) {
      copies_.push_back({.places = places, .table = allocate(places)});
      return copies_.back();
    }
    Copy& oldest = *std::ranges::min_element(copies_, {}, &Copy::step);
    if (oldest.places < places) {
      device_.release(reinterpret_cast<std::byte*>(oldest.table));
      oldest = {.places = places, .table = allocate(places)};
    }
    return oldest;
  }
  Penalised* allocate(size_t places) { return device_.allocate_array<Penalised>(static_cast<int64_t>(places)); }

  void update(const Copy& copy, std::span<const TokenHistory::Entry> table, size_t place) {
    const TokenHistory::Entry& entry = table[place];
    const bool there = entry.in_prompt + entry.in_output > 0;
    updates_.push_back({copy.table + place, {there ? entry.id : -1, entry.in_output}});
  }

  CudaDevice& device_;
  size_t most_;
  int64_t step_ = 0;
  std::vector<Copy> copies_;
  size_t last_found_ = 0;
  std::vector<Update> updates_;
};

}  // namespace weir::sampling
