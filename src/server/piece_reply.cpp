#include "server/piece_reply.h"

namespace weir {

void PieceReply::add(size_t, const Answer& answer, std::span<const ChatEvent>, std::string& out) {
  write_pieces(answer, false, out);
}

void PieceReply::write_pieces(const Answer& answer, bool ended, std::string& out) {
  for (; piece_ < answer.pieces().size(); ++piece_) {
    const AnswerPiece& piece = answer.pieces()[piece_];
    if (!open_) open(piece_, answer, out);
    open_ = true;
    if (written_ < piece.text.size()) grow(piece_, answer, std::string_view(piece.text).substr(written_), out);
    written_ = piece.text.size();
    if (!ended && !piece.whole && piece_ + 1 == answer.pieces().size()) return;
    close(piece_, answer, out);
    open_ = false;
    written_ = 0;
  }
}

}  // namespace weir
