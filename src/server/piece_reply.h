// Replies whose answers are lists of blocks or items: one for each piece of the answer.
#pragma once

#include <string>

#include "server/reply.h"

namespace weir {

// One answer. What has been written so far is compared with the answer's pieces, so it doesn't matter how its events
// are spread over calls.
class PieceReply : public Reply {
 public:
  // `served` must outlive it.
  PieceReply(openai::Job job, const openai::Served& served, std::string call_prefix)
      : served_(served), job_(std::move(job)), call_prefix_(std::move(call_prefix)) {}

  openai::Job& job() override { return job_; }
  std::string call_prefix(size_t) const override { return call_prefix_; }
  void add(size_t index, const Answer& answer, std::span<const ChatEvent> events, std::string& out) override;

 protected:
  // The last piece is closed when no more comes.
  void write_pieces(const Answer& answer, bool ended, std::string& out);

  const openai::Served& served_;

 private:
  // In this order for every piece, grow() any number of times with what is new of piece.text; closed before the next
  // one is opened.
  virtual void open(size_t index, const Answer& answer, std::string& out) = 0;
  virtual void grow(size_t index, const Answer& answer, std::string_view text, std::string& out) = 0;
  virtual void close(size_t index, const Answer& answer, std::string& out) = 0;

  openai::Job job_;
  std::string call_prefix_;
  size_t piece_ = 0, written_ = 0;  // the next or open piece, bytes of its text
  bool open_ = false;
};

}  // namespace weir
