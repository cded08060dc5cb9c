#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "../runtime/sentence_piece.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ultrafast {

namespace {

std::vector<std::int32_t> encode(const SentencePiece& pieces, const std::string& text) {
  const nb::gil_scoped_release released;
  return pieces.encode(text);
}

void construct(SentencePiece* self, std::vector<std::string> texts, const InputArray<float>& scores,
               const InputArray<std::int32_t>& types, std::int32_t unknown) {
  std::vector<PieceType> kinds(types.size());
  for (std::size_t i = 0; i < types.size(); ++i) kinds[i] = static_cast<PieceType>(types.data()[i]);
  new (self) SentencePiece(std::move(texts), {scores.data(), scores.data() + scores.size()}, kinds, unknown);
}

}  // namespace

void register_sentence_piece(nb::module_& module) {
  nb::class_<SentencePiece>(module, "SentencePiece")
      .def("__init__", &construct, nb::kw_only(), "texts"_a, "scores"_a, "types"_a, "unknown"_a)
      .def("encode", &encode, "text"_a, "Token ids of text whose spaces are U+2581 already; lets go of the GIL.");
}

}  // namespace ultrafast
