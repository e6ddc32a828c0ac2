#include "cli/load.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace weir::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kPiece = int64_t{1} << 20;

std::span<const std::byte> whole_pages(std::span<const std::byte> piece) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(piece.data()) & ~(page - 1);
  const auto end = (reinterpret_cast<uintptr_t>(piece.data() + piece.size()) + page - 1) & ~(page - 1);
  return {reinterpret_cast<const std::byte*>(begin), end - begin};
}

bool in_memory(std::span<const std::byte> pages) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> there(pages.size() / page);
  if (mincore(const_cast<std::byte*>(pages.data()), pages.size(), there.data()) != 0) return true;
  return std::ranges::all_of(there, [](unsigned char flags) { return flags & 1; });
}

class ProgressBar {
 public:
  ProgressBar() : visible_(is_terminal(STDERR_FILENO)) {}
  ~ProgressBar() {
    if (drawn_) std::fprintf(stderr, "\r\x1b[K");
  }
  void show(int64_t done, int64_t total) {
    const Clock::time_point now = Clock::now();
    if (!visible_ || now - start_ < std::chrono::seconds(1) || now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    drawn_ = true;
    const double part = static_cast<double>(done) / static_cast<double>(std::max<int64_t>(total, 1));
    const std::string numbers =
        concat(" ", human_bytes(static_cast<double>(done)), " of ", human_bytes(static_cast<double>(total)));
    const int width = std::clamp(terminal_size(STDERR_FILENO).columns - static_cast<int>(numbers.size()) - 11, 0, 40);
    const int full = static_cast<int>(part * width);
    std::string bar = width == 0 ? "" : "[";
    bar.append(static_cast<size_t>(full), '=').append(static_cast<size_t>(width - full), ' ');
    std::fprintf(stderr, "\rloading %s%s%s\x1b[K", bar.c_str(), width == 0 ? "" : "]", numbers.c_str());
    std::fflush(stderr);
  }

 private:
  bool visible_, drawn_ = false;
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

void read_weights(const Model& model) {
  if (model.weight_bytes() > available_memory()) return;
  constexpr size_t kAhead = 64;
  const std::vector<std::span<const std::byte>> pieces = weight_pieces(model, model.weight_bytes());
  ProgressBar bar;
  int64_t done = 0;
  volatile unsigned char kept = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::span<const std::byte> pages = whole_pages(pieces[i]);
    if (!in_memory(pages)) {
      const std::span<const std::byte> ahead = whole_pages(pieces[std::min(i + kAhead, pieces.size() - 1)]);
      madvise(const_cast<std::byte*>(ahead.data()), ahead.size(), MADV_WILLNEED);
      for (size_t at = 0; at < pages.size(); at += 4096) {
        kept = kept + static_cast<unsigned char>(pages[at]);
      }
    }
    done += static_cast<int64_t>(pieces[i].size());
    bar.show(done, model.weight_bytes());
  }
}

}  // namespace

LoadedModel load_with_text(const std::string& path, Words words) {
  std::unique_ptr<Model> model = Model::load(path);
  ModelText text;
  try {
    text = ModelText::of(*model);
  } catch (const Error&) {
    if (words == Words::kNeeded) throw;
  }
  read_weights(*model);
  return {std::move(model), std::move(text)};
}

std::vector<std::span<const std::byte>> weight_pieces(const Model& model, int64_t limit) {
  std::vector<std::span<const std::byte>> pieces;
  const auto add = [&](const std::byte* data, int64_t bytes) {
    for (int64_t at = 0; at < bytes && limit > 0; at += kPiece) {
      const int64_t size = std::min({kPiece, bytes - at, limit});
      pieces.emplace_back(data + at, static_cast<size_t>(size));
      limit -= size;
    }
  };
  if (const Checkpoint* checkpoint = model.checkpoint()) {
    for (const Tensor& tensor : checkpoint->tensors()) add(tensor.data, tensor.bytes);
  } else {
    for (const GgufTensor& tensor : model.gguf()->tensors()) add(tensor.data, tensor.bytes);
  }
  return pieces;
}

void check_prompt(std::span<const int32_t> ids, const Model& model) {
  for (const int32_t id : ids) {
    if (id >= model.spec.vocab) {
      fail("the tokenizer yields the id ", id, ", but the model knows only ids below ", model.spec.vocab,
           ": they don't belong together");
    }
  }
}

}  // namespace weir::cli
