#include "sentence_piece.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <stdexcept>

namespace ultrafast {

namespace {

constexpr std::int32_t kNone = -1;

int hexadecimal(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  throw std::invalid_argument("a byte piece is not written <0xHH>");
}

int byte_value(const std::string& text) {
  if (text.size() != 6 || text.compare(0, 3, "<0x") != 0 || text[5] != '>') {
    throw std::invalid_argument("a byte piece is not written <0xHH>");
  }
  return hexadecimal(text[3]) * 16 + hexadecimal(text[4]);
}

std::size_t letter_length(std::string_view rest) {
  const auto lead = static_cast<unsigned char>(rest.front());
  const std::size_t length = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  return std::min(length, rest.size());
}

struct Symbol {
  std::int32_t previous;
  std::int32_t next;
  std::string_view text;  // empty once joined to its left neighbour
  bool fixed;             // user-defined
};

struct Join {
  float score;
  std::int32_t left;
  std::int32_t right;
  std::size_t length;  // of both together; another one means that either has changed since

  bool operator<(const Join& other) const { return score < other.score || (score == other.score && left > other.left); }
};

}  // namespace

SentencePiece::SentencePiece(std::vector<std::string> texts, std::vector<float> scores,
                             const std::vector<PieceType>& types, std::int32_t unknown)
    : texts_(std::move(texts)), scores_(std::move(scores)), unused_(texts_.size()), unknown_(unknown) {
  if (scores_.size() != texts_.size() || types.size() != texts_.size()) {
    throw std::invalid_argument("texts, scores and types differ in length");
  }
  if (unknown < kNone || unknown >= static_cast<std::int64_t>(texts_.size())) {
    throw std::invalid_argument("unknown is outside the vocabulary");
  }
  std::fill(std::begin(bytes_), std::end(bytes_), kNone);
  index_.reserve(texts_.size());
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    const std::string& text = texts_[i];
    if (scores_[i] != scores_[i]) throw std::invalid_argument("a score is not a number");
    if (types[i] == PieceType::kByte) bytes_[byte_value(text)] = id;
    const bool user_defined = types[i] == PieceType::kUserDefined;
    unused_[i] = types[i] == PieceType::kUnused;
    if (types[i] != PieceType::kNormal && !user_defined && !unused_[i]) continue;
    if (text.empty()) throw std::invalid_argument("a piece is empty");
    if (!index_.emplace(text, id).second) throw std::invalid_argument("a piece stands twice in the vocabulary");
    if (user_defined) {
      user_defined_.emplace(text, id);
      user_defined_lengths_[static_cast<unsigned char>(text.front())].push_back(text.size());
    }
  }
  for (std::vector<std::size_t>& lengths : user_defined_lengths_) {
    std::sort(lengths.begin(), lengths.end(), std::greater<>());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  }
  has_bytes_ = std::find(std::begin(bytes_), std::end(bytes_), kNone) == std::end(bytes_);
}

std::vector<std::int32_t> SentencePiece::encode(std::string_view text) const {
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw std::invalid_argument("the text is longer than 2 GiB");
  }
  std::vector<Symbol> symbols;
  symbols.reserve(text.size());
  for (std::size_t position = 0; position < text.size();) {
    const std::string_view rest = text.substr(position);
    const std::size_t fixed = user_defined_length(rest);
    const std::size_t length = fixed != 0 ? fixed : letter_length(rest);
    const auto here = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({here - 1, here + 1, rest.substr(0, length), fixed != 0});
    position += length;
  }
  if (symbols.empty()) return {};
  symbols.back().next = kNone;

  std::priority_queue<Join> joins;
  Parts parts;  // of unused pieces
  const auto consider = [&](std::int32_t left, std::int32_t right) {
    if (left == kNone || right == kNone || symbols[left].fixed || symbols[right].fixed) return;
    const std::string_view first = symbols[left].text;
    const std::string_view second = symbols[right].text;
    const std::string_view joined(first.data(), first.size() + second.size());
    const auto found = index_.find(joined);
    if (found == index_.end()) return;
    joins.push({scores_[found->second], left, right, joined.size()});
    if (unused_[found->second]) parts[joined] = {first, second};
  };
  for (std::int32_t i = 1; i < static_cast<std::int32_t>(symbols.size()); ++i) consider(i - 1, i);
  while (!joins.empty()) {
    const Join best = joins.top();
    joins.pop();
    Symbol& left = symbols[best.left];
    Symbol& right = symbols[best.right];
    if (left.text.empty() || right.text.empty() || left.text.size() + right.text.size() != best.length) continue;
    left.text = {left.text.data(), best.length};
    left.next = right.next;
    if (right.next != kNone) symbols[right.next].previous = best.left;
    right.text = {};
    consider(left.previous, best.left);
    consider(best.left, left.next);
  }

  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i != kNone; i = symbols[i].next) append(symbols[i].text, parts, ids);
  return ids;
}

// How long the longest user-defined piece is that `rest` begins with; 0: none.
std::size_t SentencePiece::user_defined_length(std::string_view rest) const {
  for (const std::size_t length : user_defined_lengths_[static_cast<unsigned char>(rest.front())]) {
    if (length <= rest.size() && user_defined_.contains(rest.substr(0, length))) return length;
  }
  return 0;
}

void SentencePiece::append(std::string_view piece, const Parts& parts, std::vector<std::int32_t>& ids) const {
  std::vector<std::string_view> pending{piece};  // a stack, the leftmost on top
  while (!pending.empty()) {
    const std::string_view part = pending.back();
    pending.pop_back();
    const auto found = index_.find(part);
    if (found != index_.end() && unused_[found->second]) {
      if (const auto split = parts.find(part); split != parts.end()) {
        pending.push_back(split->second.second);
        pending.push_back(split->second.first);
        continue;
      }
    }
    if (found != index_.end()) {
      ids.push_back(found->second);
    } else if (has_bytes_) {
      for (const char byte : part) ids.push_back(bytes_[static_cast<unsigned char>(byte)]);
    } else if (unknown_ != kNone && (ids.empty() || ids.back() != unknown_)) {
      ids.push_back(unknown_);
    }
  }
}

}  // namespace ultrafast
