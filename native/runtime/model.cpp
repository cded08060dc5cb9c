#include "model.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "checks.h"

namespace ultrafast {

namespace {

void check_shape(const Shape& s) {
  require(s.vocabulary_size > 0 && s.hidden_size > 0 && s.layer_count > 0, "sizes must be positive");
  require(s.head_count > 0 && s.kv_head_count > 0 && s.head_size > 0, "head counts and size must be positive");
  require(s.head_count % s.kv_head_count == 0, "head count must be a multiple of the KV head count");
  require(s.context > 0 && s.block_count > 0 && s.max_sequences > 0 && s.max_rows > 0, "limits must be positive");
}

}  // namespace

Model::ActivationRoom::ActivationRoom(std::int64_t row_count, std::int64_t width, bool with_values) {
  const std::int64_t padded_width = padded(width);
  const std::int64_t blocks = padded_width / kBlock;
  const std::int64_t value_bytes = with_values ? padded_width * 4 : 0;
  const std::int64_t row_bytes = (value_bytes + padded_width + blocks * 20 + 63) / 64 * 64;
  memory = Memory(static_cast<std::size_t>(row_bytes * row_count));
  rows.resize(static_cast<std::size_t>(row_count));
  for (std::int64_t r = 0; r < row_count; ++r) {
    std::uint8_t* start = memory.data() + r * row_bytes;
    Activation& row = rows[static_cast<std::size_t>(r)];
    row.values = with_values ? reinterpret_cast<float*>(start) : nullptr;
    row.scales = reinterpret_cast<float*>(start + value_bytes);
    row.scaled_sums = row.scales + blocks;
    row.sums = reinterpret_cast<std::int32_t*>(row.scaled_sums + blocks);
    row.half_sums = row.sums + blocks;
    row.bytes = reinterpret_cast<std::int8_t*>(row.half_sums + 2 * blocks);
  }
}

Model::Model(const KernelTable& kernels, int threads, std::vector<int> cpus, const Shape& shape)
    : kernels_(kernels),
      team_((check_shape(shape), threads), std::move(cpus)),
      shape_(shape),
      cache_(shape.layer_count, shape.kv_head_count, shape.head_size, shape.block_count, shape.max_sequences) {}

// Every unit of these matrices, side by side.
std::vector<Model::Piece> Model::units_of(const std::vector<std::int32_t>& matrices) const {
  std::vector<Piece> all;
  std::int64_t column = 0;
  for (const std::int32_t index : matrices) {
    for (std::int64_t u = 0; u < matrix(index).unit_count(); ++u, column += kUnitRows) {
      all.push_back({.matrix = index, .unit = u, .column = column});
    }
  }
  return all;
}

void Model::list_pieces(Operation& operation) {
  const auto append_gated = [&](std::int32_t gate, std::int32_t up, std::int32_t expert) {
    for (Piece& piece : units_of({gate})) {
      piece.partner = up;
      piece.expert = expert;
      operation.pieces.push_back(piece);
    }
  };
  switch (operation.kind) {
    case Kind::kGated:
      append_gated(operation.matrices[0], operation.matrices[1], 0);
      break;
    case Kind::kLinear:
    case Kind::kOutput:
      operation.pieces = units_of(operation.matrices);
      break;
    case Kind::kMixture: {
      const Experts& experts = operation.experts;
      operation.router_pieces = units_of({experts.router});
      for (std::int32_t e = 0; e < experts.count(); ++e) {
        const auto at = static_cast<std::size_t>(e);
        append_gated(experts.gates[at], experts.ups[at], e);
        for (Piece& piece : units_of({experts.downs[at]})) {
          piece.expert = e;
          operation.down_pieces.push_back(piece);
        }
      }
      std::stable_sort(operation.down_pieces.begin(), operation.down_pieces.end(),
                       [](const Piece& a, const Piece& b) { return a.unit < b.unit; });
      break;
    }
    default:
      break;
  }
}

// The pieces of a member's own share of an operation, in order: those that it reads where all members keep pace.
template <class Visit>
void Model::each_piece(Operation& operation, int member, const Visit& visit) {
  for (std::vector<Piece>* pieces : {&operation.router_pieces, &operation.pieces, &operation.down_pieces}) {
    const Share own = share(std::ssize(*pieces), member, team_.members());
    for (std::int64_t i = own.begin; i < own.end; ++i) visit((*pieces)[static_cast<std::size_t>(i)]);
  }
}

// Gives every unit its place: in the arena of the member whose share it is in first, in the order a step reads it. A
// tied embedding and output layer share one copy. Returns each arena's bytes.
std::vector<std::int64_t> Model::place_units() {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(team_.members()), 0);
  const auto place = [&](int member, std::int32_t index, std::int64_t unit) {
    Matrix& owner = matrices_[static_cast<std::size_t>(index)];
    Place& at = owner.units[static_cast<std::size_t>(unit)];
    if (at.member >= 0) return;
    std::int64_t& end = bytes[static_cast<std::size_t>(member)];
    at.member = member;
    at.offset = end;
    end += unit_bytes(owner.source.type, owner.source.columns);
  };
  for (Matrix& each : matrices_) each.units.assign(static_cast<std::size_t>(each.unit_count()), {});
  for (Operation& operation : program_) {
    list_pieces(operation);
    for (int m = 0; m < team_.members(); ++m) {
      each_piece(operation, m, [&](const Piece& piece) {
        place(m, piece.matrix, piece.unit);
        if (piece.partner >= 0) place(m, piece.partner, piece.unit);
      });
    }
  }
  // Rows of an embedding that no product reads still need a place.
  const std::int32_t table = program_.front().matrices[0];
  for (std::int64_t u = 0; u < matrix(table).unit_count(); ++u) place(0, table, u);
  for (Matrix& each : matrices_) {
    for (Place& at : each.units) {
      std::int64_t& end = bytes[static_cast<std::size_t>(at.member)];
      at.lower_offset = end;
      end += lower_unit_bytes(each.source.type, each.source.columns);
    }
  }
  return bytes;
}

// Each member writes its own arena, so that its pages are first touched where they will be read.
void Model::fill_arenas() {
  const std::vector<std::int64_t> bytes = place_units();
  for (const std::int64_t each : bytes) arenas_.emplace_back(static_cast<std::size_t>(each));
  for (Matrix& each : matrices_) {
    if (each.source.type == WeightType::kQ8_0Split) each.slack.resize(each.units.size() * kUnitRows);
  }
  std::atomic<bool> sound = true;
  team_.run(Team::Attendance::kEveryone, [&](int member) {
    std::uint8_t* arena = arenas_[static_cast<std::size_t>(member)].data();
    for (Matrix& each : matrices_) {
      for (std::size_t u = 0; u < each.units.size(); ++u) {
        Place& place = each.units[u];
        if (place.member != member) continue;
        place.data = arena + place.offset;
        UnitOutput out{.data = arena + place.offset};
        if (!each.slack.empty()) {
          place.lower = out.lower = arena + place.lower_offset;
          out.slack = each.slack.data() + u * kUnitRows;
        }
        if (!write_unit(each.source, static_cast<std::int64_t>(u), out)) sound = false;
      }
    }
  });
  require(sound, "a weight is not finite or too large to be quantised; load it without --quantize");
  for (Matrix& each : matrices_) {
    if (!std::ranges::all_of(each.slack, [](float slack) { return std::isfinite(slack); })) each.slack.clear();
  }
  const auto place_of = [this](std::int32_t index, std::int64_t unit) {
    return matrices_[static_cast<std::size_t>(index)].units[static_cast<std::size_t>(unit)];
  };
  for (Operation& operation : program_) {
    for (int m = 0; m < team_.members(); ++m) {
      each_piece(operation, m, [&](Piece& piece) {
        const Place place = place_of(piece.matrix, piece.unit);
        piece.data = place.data;
        piece.second = piece.partner >= 0 ? place_of(piece.partner, piece.unit).data : place.lower;
      });
    }
  }
}

std::int64_t Model::widest_input() const {
  std::int64_t widest = shape_.hidden_size;
  for (const Matrix& each : matrices_) widest = std::max(widest, each.source.columns);
  return widest;
}

void Model::make_rooms() {
  const std::int64_t width = widest_input();
  const std::int64_t spread = std::max(1, most_used_);  // rows of a mixture's experts
  shared_activations_ = ActivationRoom(shape_.max_rows * spread, width);
  const std::int64_t head = cache_.padded_head_size();
  const std::int64_t blocks = (shape_.context + kCacheBlock - 1) / kCacheBlock;
  const std::int64_t scratch_bytes = 4 * (attention_scratch(kTileQueries, head) + kTileQueries * head) +
                                     4 * 2 * kSweepRows * kUnitRows + 2 * sizeof(void*) * blocks +
                                     4 * kCacheBlock * head * blocks + 4096;
  for (int m = 0; m < team_.members(); ++m) {
    own_activations_.emplace_back(kOwnRows, width);
    scratch_.emplace_back(static_cast<std::size_t>(scratch_bytes));
    pickers_.emplace_back(kernels_, shape_.vocabulary_size);
  }
  logits_ = Memory(static_cast<std::size_t>(kPickRows * padded(shape_.vocabulary_size) * 4));
  if (most_experts_ == 0) return;
  router_ = Memory(static_cast<std::size_t>(shape_.max_rows * padded(most_experts_) * 4));
  expert_ = Memory(static_cast<std::size_t>(shape_.max_rows * spread * widest_expert_ * 4));
}

// Where every reader of a gated product's result is the operation after it and takes quantised values only, they are
// quantised where they arise: each unit of the product gives a whole block of every row.
void Model::hand_on() {
  const auto takes = [&](const Operation& reader, const Operation& before) {
    return reader.kind == Kind::kLinear && reader.input.norm < 0 && before.kind == Kind::kGated &&
           before.destination == reader.input.source &&
           std::ranges::all_of(
               reader.matrices, [&](std::int32_t index) { return is_quantised(matrix(index).source.type); });
  };
  std::int64_t widest = 0;
  for (std::size_t i = 0; i + 1 < program_.size(); ++i) {
    Operation& gated = program_[i];
    if (gated.kind != Kind::kGated) continue;
    bool all = true;
    for (std::size_t j = 1; j < program_.size(); ++j) {
      if (program_[j].input.source == gated.destination) all = all && takes(program_[j], program_[j - 1]);
    }
    if (!all) continue;
    gated.hands_on = program_[i + 1].is_handed = true;
    widest = std::max(widest, std::int64_t{buffer(gated.destination).width});
  }
  if (widest > 0) handed_activations_ = ActivationRoom(shape_.max_rows, widest, false);
}

void Model::finish() {
  require(!finished_, "the model is finished");
  const auto is_output = [](const Operation& operation) { return operation.kind == Kind::kOutput; };
  require(!program_.empty() && program_.front().kind == Kind::kEmbed && is_output(program_.back()),
          "a program starts with embed and ends with output");
  fill_arenas();
  for (Matrix& each : matrices_) {
    each.source.data = nullptr;
    each.source.owner.reset();  // or a file's pages would stay in memory beside their copy
  }
  make_rooms();
  hand_on();
  finished_ = true;
}

std::int64_t Model::weight_bytes() const {
  std::int64_t total = 0;
  for (const Memory& arena : arenas_) total += static_cast<std::int64_t>(arena.size());
  return total;
}

std::vector<std::pair<std::uintptr_t, std::size_t>> Model::regions() const {
  std::vector<std::pair<std::uintptr_t, std::size_t>> found;
  for (const Memory& arena : arenas_) found.emplace_back(reinterpret_cast<std::uintptr_t>(arena.data()), arena.size());
  return found;
}

}  // namespace ultrafast
