// Text to pieces by SentencePiece's rule for BPE vocabularies: of all neighbours whose joined text is a piece, join
// those of the highest score first, the leftmost of equals, until none is left.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ultrafast {

// As model files number them.
enum class PieceType : std::int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

class SentencePiece {
 public:
  // The three are equally long. A byte piece's text is "<0xHH>"; other texts are UTF-8, all different, none empty.
  // unknown: what stands for a run of letters that neither a piece nor byte pieces express; -1 leaves them out.
  // Throws std::invalid_argument.
  SentencePiece(std::vector<std::string> texts, std::vector<float> scores, const std::vector<PieceType>& types,
                std::int32_t unknown);
  SentencePiece(const SentencePiece&) = delete;  // the index points into texts_
  SentencePiece& operator=(const SentencePiece&) = delete;

  // Ids of `text`, valid UTF-8 whose spaces are U+2581 already. Control, unknown and byte pieces never match by their
  // text. A user-defined piece is cut out first, the longest at each place, and never joined with a neighbour. An
  // unused piece may be joined further; what is left of one falls back into the two it was made of. Thread-safe.
  std::vector<std::int32_t> encode(std::string_view text) const;

 private:
  using Parts = std::unordered_map<std::string_view, std::pair<std::string_view, std::string_view>>;

  std::size_t user_defined_length(std::string_view rest) const;
  void append(std::string_view piece, const Parts& parts, std::vector<std::int32_t>& ids) const;

  std::vector<std::string> texts_;
  std::vector<float> scores_;
  std::vector<bool> unused_;
  std::unordered_map<std::string_view, std::int32_t> index_;  // normal, user-defined and unused pieces
  std::unordered_map<std::string_view, std::int32_t> user_defined_;
  std::vector<std::size_t> user_defined_lengths_[256];  // by first byte, longest first
  std::int32_t bytes_[256];
  bool has_bytes_ = true;
  std::int32_t unknown_;
};

}  // namespace ultrafast
