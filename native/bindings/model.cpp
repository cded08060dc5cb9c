#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

#include "../runtime/model.h"
#include "../runtime/quantise.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ultrafast {

MatrixSource matrix_source(const std::string& type, const std::string& layout, const InputArray<std::uint8_t>& data,
                           std::int64_t rows, std::int64_t columns, std::int32_t interleaved_head_size) {
  const WeightType stored = weight_type(type);
  const WeightType laid_out = weight_type(layout);
  if (stored != laid_out && !can_quantise(stored, laid_out)) throw nb::value_error("no layout of such weights");
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  if (rows <= 0 || columns <= 0 || rows >= kLimit || columns >= kLimit)
    throw nb::value_error("rows or columns out of range");
  if (columns % block_columns(laid_out) != 0) throw nb::value_error("columns must be whole blocks");
  if (static_cast<std::int64_t>(data.size()) != source_bytes(stored, rows, columns)) {
    throw nb::value_error("the data's size does not fit type, rows and columns");
  }
  return {stored, laid_out, data.data(), rows, columns, interleaved_head_size};
}

ActivationKind activation_kind(const std::string& name) {
  if (name == "silu") return ActivationKind::kSilu;
  if (name == "gelu") return ActivationKind::kGelu;
  throw nb::value_error("activation must be silu or gelu");
}

namespace {

// The array, for as long as the model reads its data: whoever lets go of it may not hold Python's lock.
std::shared_ptr<const void> owner_of(const InputArray<std::uint8_t>& data) {
  const auto let_go = [](const InputArray<std::uint8_t>* array) {
    const nb::gil_scoped_acquire locked;
    delete array;
  };
  return std::shared_ptr<const InputArray<std::uint8_t>>(new InputArray<std::uint8_t>(data), let_go);
}

Sampling make_sampling(float temperature, std::int32_t top_k, float top_p, float min_p, float repetition_penalty,
                       float presence_penalty, float frequency_penalty, std::uint64_t seed, std::uint32_t choice,
                       std::int32_t top_logprobs, const std::vector<std::pair<std::int32_t, float>>& logit_bias) {
  Sampling sampling{temperature, top_k,  top_p,        min_p, repetition_penalty, presence_penalty, frequency_penalty,
                    seed,        choice, top_logprobs, {}};
  for (const auto& [token, value] : logit_bias) sampling.logit_bias.push_back({token, value});
  return sampling;
}

void check_sampling(const Sampling& s, std::int32_t vocabulary) {
  const auto finite = [](float x) { return x - x == 0.0f; };
  const bool numbers = finite(s.temperature) && finite(s.top_p) && finite(s.min_p) && finite(s.repetition_penalty) &&
                       finite(s.presence_penalty) && finite(s.frequency_penalty);
  if (!numbers || s.temperature < 0.0f || s.repetition_penalty <= 0.0f || s.top_k < 0 || s.top_logprobs < 0) {
    throw nb::value_error("sampling parameters out of range");
  }
  for (const Bias& bias : s.logit_bias) {
    if (bias.token < 0 || bias.token >= vocabulary || !finite(bias.value)) {
      throw nb::value_error("logit_bias outside the vocabulary");
    }
  }
}

// (rows, tokens, logprobs, top_tokens, top_logprobs, logits, hidden, failed_sequences)
nb::tuple step_result(const StepOutput& output, const Shape& shape) {
  const std::size_t wanted = output.rows.size();
  std::size_t width = 0;
  for (const PickResult& pick : output.picks) width = std::max(width, pick.top.size());
  std::vector<std::int32_t> tokens(wanted);
  std::vector<float> logprobs(wanted);
  std::vector<std::int32_t> top_tokens(wanted * width, -1);
  std::vector<float> top_logprobs(wanted * width, 0.0f);
  for (std::size_t i = 0; i < wanted; ++i) {
    const PickResult& pick = output.picks[i];
    tokens[i] = pick.token;
    logprobs[i] = pick.logprob;
    for (std::size_t k = 0; k < pick.top.size(); ++k) {
      top_tokens[i * width + k] = pick.top[k].token;
      top_logprobs[i * width + k] = pick.top[k].logprob;
    }
  }
  const auto vocabulary = static_cast<std::size_t>(shape.vocabulary_size);
  const auto hidden = static_cast<std::size_t>(shape.hidden_size);
  return nb::make_tuple(owned_array(output.rows, {wanted}), owned_array(tokens, {wanted}),
                        owned_array(logprobs, {wanted}), owned_array(top_tokens, {wanted, width}),
                        owned_array(top_logprobs, {wanted, width}),
                        owned_array(output.logits, {output.logits.size() / vocabulary, vocabulary}),
                        owned_array(output.hidden, {output.hidden.size() / hidden, hidden}),
                        owned_array(output.failed_sequences, {output.failed_sequences.size()}));
}

nb::tuple run_step(Model& model, const InputArray<std::int32_t>& tokens, const InputArray<std::int32_t>& positions,
                   const InputArray<std::int32_t>& sequences, const InputArray<std::int32_t>& parents,
                   const InputArray<std::uint8_t>& want,
                   const std::optional<InputMatrix<std::uint32_t>>& allowed_mask) {
  const auto span = [](const InputArray<std::int32_t>& a) { return std::span(a.data(), a.size()); };
  const StepInput input{span(tokens),
                        span(positions),
                        span(sequences),
                        span(parents),
                        std::span(want.data(), want.size()),
                        allowed_mask ? allowed_mask->data() : nullptr};
  if (allowed_mask) {
    std::size_t wanted = 0;
    for (const std::uint8_t each : input.want) wanted += each != 0 ? 1 : 0;
    const auto words = static_cast<std::size_t>((model.shape().vocabulary_size + 31) / 32);
    if (allowed_mask->shape(0) != wanted || allowed_mask->shape(1) != words) {
      throw nb::value_error("allowed_mask must be [wanted rows][ceil(vocabulary / 32)]");
    }
  }
  StepOutput output;
  {
    const nb::gil_scoped_release released;
    output = model.step(input);
  }
  return step_result(output, model.shape());
}

double read_bandwidth(int threads, std::vector<int> cpus, std::int64_t byte_count, double seconds) {
  if (threads < 1 || byte_count < threads * 64 || (!cpus.empty() && cpus.size() != static_cast<std::size_t>(threads))) {
    throw nb::value_error("threads, cpus or byte_count out of range");
  }
  const nb::gil_scoped_release released;
  Team team(threads, std::move(cpus));
  return measure_read_bandwidth(team, byte_count, seconds);
}

}  // namespace

void register_model(nb::module_& module) {
  module.def("measure_read_bandwidth", &read_bandwidth, "threads"_a, "cpus"_a, "byte_count"_a, "seconds"_a,
             "Bytes per second that `threads` threads read together, each from its own share of byte_count.");
  nb::class_<Sampling>(module, "Sampling")
      .def(
          "__init__",
          [](Sampling* self, float temperature, std::int32_t top_k, float top_p, float min_p, float repetition_penalty,
             float presence_penalty, float frequency_penalty, std::uint64_t seed, std::uint32_t choice,
             std::int32_t top_logprobs, const std::vector<std::pair<std::int32_t, float>>& logit_bias) {
            new (self) Sampling(make_sampling(temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty,
                                              frequency_penalty, seed, choice, top_logprobs, logit_bias));
          },
          nb::kw_only(), "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "repetition_penalty"_a, "presence_penalty"_a,
          "frequency_penalty"_a, "seed"_a, "choice"_a, "top_logprobs"_a, "logit_bias"_a);
  nb::class_<Model>(module, "Model")
      .def(
          "__init__",
          [](Model* self, const std::string& instruction_set, int threads, std::vector<int> cpus,
             std::int32_t vocabulary_size, std::int32_t hidden_size, std::int32_t layer_count, std::int32_t head_count,
             std::int32_t kv_head_count, std::int32_t head_size, float attention_scale, std::int32_t context,
             std::int32_t block_count, std::int32_t max_sequences, std::int32_t max_rows) {
            constexpr int kMostThreads = 1024;
            if (threads < 1 || threads > kMostThreads ||
                (!cpus.empty() && cpus.size() != static_cast<std::size_t>(threads))) {
              throw nb::value_error("threads or cpus out of range");
            }
            const Shape shape{vocabulary_size, hidden_size, layer_count, head_count,    kv_head_count, head_size,
                              attention_scale, context,     block_count, max_sequences, max_rows};
            new (self) Model(kernels_for(instruction_set), threads, std::move(cpus), shape);
          },
          nb::kw_only(), "instruction_set"_a, "threads"_a, "cpus"_a, "vocabulary_size"_a, "hidden_size"_a,
          "layer_count"_a, "head_count"_a, "kv_head_count"_a, "head_size"_a, "attention_scale"_a, "context"_a,
          "block_count"_a, "max_sequences"_a, "max_rows"_a)
      .def(
          "add_matrix",
          [](Model& model, const std::string& type, const InputArray<std::uint8_t>& data, std::int64_t rows,
             std::int64_t columns, std::int32_t interleaved_head_size, const std::string& layout) {
            MatrixSource source = matrix_source(type, layout, data, rows, columns, interleaved_head_size);
            source.owner = owner_of(data);
            return model.add_matrix(source);
          },
          "type"_a, "data"_a, "rows"_a, "columns"_a, "interleaved_head_size"_a, "layout"_a)
      .def(
          "add_vector",
          [](Model& model, const InputArray<float>& values) {
            return model.add_vector(std::vector<float>(values.data(), values.data() + values.size()));
          },
          "values"_a)
      .def("add_buffer", &Model::add_buffer, "width"_a)
      .def(
          "add_rotary",
          [](Model& model, std::int32_t size, double base, const InputArray<float>& factors, float magnitude) {
            return model.add_rotary(
                {size, base, std::vector<float>(factors.data(), factors.data() + factors.size()), magnitude});
          },
          "size"_a, "base"_a, "factors"_a, "magnitude"_a)
      .def("embed", &Model::embed, "table"_a, "destination"_a, "scale"_a)
      .def(
          "linear",
          [](Model& model, std::int32_t source, std::int32_t norm, float epsilon,
             const std::vector<std::int32_t>& matrices, std::int32_t destination, bool accumulate,
             const std::vector<std::int32_t>& biases,
             float scale) { model.linear({source, norm, epsilon}, matrices, biases, destination, accumulate, scale); },
          "source"_a, "norm"_a, "epsilon"_a, "matrices"_a, "destination"_a, "accumulate"_a, "biases"_a, "scale"_a)
      .def(
          "gated",
          [](Model& model, std::int32_t source, std::int32_t norm, float epsilon, std::int32_t gate, std::int32_t up,
             std::int32_t destination, const std::string& activation) {
            model.gated({source, norm, epsilon}, gate, up, destination, activation_kind(activation));
          },
          "source"_a, "norm"_a, "epsilon"_a, "gate"_a, "up"_a, "destination"_a, "activation"_a)
      .def(
          "norm",
          [](Model& model, std::int32_t source, std::int32_t norm, float epsilon, std::int32_t destination,
             bool accumulate, float scale) { model.norm({source, norm, epsilon}, destination, accumulate, scale); },
          "source"_a, "norm"_a, "epsilon"_a, "destination"_a, "accumulate"_a, "scale"_a)
      .def(
          "attention",
          [](Model& model, std::int32_t layer, std::int32_t source, std::int32_t destination, std::int32_t rotary,
             std::int32_t window, std::int32_t query_norm, std::int32_t key_norm, float epsilon, float softcap) {
            model.attention({layer, rotary, window, query_norm, key_norm, epsilon, softcap}, source, destination);
          },
          "layer"_a, "source"_a, "destination"_a, "rotary"_a, "window"_a, "query_norm"_a, "key_norm"_a, "epsilon"_a,
          "softcap"_a)
      .def(
          "mixture",
          [](Model& model, std::int32_t source, std::int32_t norm, float epsilon, std::int32_t router,
             std::vector<std::int32_t> gates, std::vector<std::int32_t> ups, std::vector<std::int32_t> downs,
             std::int32_t used, bool normalise, std::int32_t destination, const std::string& activation, float scale) {
            const Experts experts{router,    std::move(gates),           std::move(ups), std::move(downs), used,
                                  normalise, activation_kind(activation)};
            model.mixture({source, norm, epsilon}, experts, destination, scale);
          },
          "source"_a, "norm"_a, "epsilon"_a, "router"_a, "gates"_a, "ups"_a, "downs"_a, "used"_a, "normalise"_a,
          "destination"_a, "activation"_a, "scale"_a)
      .def(
          "output",
          [](Model& model, std::int32_t source, std::int32_t norm, float epsilon, std::int32_t matrix, float scale,
             float softcap) { model.output({source, norm, epsilon}, matrix, scale, softcap); },
          "source"_a, "norm"_a, "epsilon"_a, "matrix"_a, "scale"_a, "softcap"_a)
      .def("finish", &Model::finish, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "bind",
          [](Model& model, std::int32_t sequence, const InputArray<std::int32_t>& blocks,
             const InputArray<std::int32_t>& history, std::int32_t prompt_length, const Sampling& sampling) {
            const std::int32_t vocabulary = model.shape().vocabulary_size;
            check_sampling(sampling, vocabulary);
            std::vector<std::int32_t> tokens(history.data(), history.data() + history.size());
            for (const std::int32_t token : tokens) {
              if (token < 0 || token >= vocabulary) throw nb::value_error("a token is outside the vocabulary");
            }
            model.cache().bind(sequence, std::vector<std::int32_t>(blocks.data(), blocks.data() + blocks.size()),
                               std::move(tokens), prompt_length, sampling);
          },
          "sequence"_a, "blocks"_a, "history"_a, "prompt_length"_a, "sampling"_a)
      .def(
          "release", [](Model& model, std::int32_t sequence) { model.cache().release(sequence); }, "sequence"_a)
      .def(
          "truncate",
          [](Model& model, std::int32_t sequence, std::int32_t length) { model.cache().truncate(sequence, length); },
          "sequence"_a, "length"_a)
      .def(
          "copy_block",
          [](Model& model, std::int32_t source, std::int32_t destination) {
            model.cache().copy_block(source, destination);
          },
          "source"_a, "destination"_a)
      .def(
          "move",
          [](Model& model, std::int32_t sequence, std::int32_t source, std::int32_t destination) {
            model.cache().move(sequence, source, destination);
          },
          "sequence"_a, "source"_a, "destination"_a)
      .def(
          "length", [](Model& model, std::int32_t sequence) { return model.cache().bound_sequence(sequence).length(); },
          "sequence"_a)
      .def("step", &run_step, "tokens"_a, "positions"_a, "sequences"_a, "parents"_a, "want"_a,
           "allowed_mask"_a.none() = nb::none())
      .def_prop_ro("weight_bytes", &Model::weight_bytes)
      .def_prop_ro("kv_cache_bytes", [](Model& model) { return model.cache().bytes(); })
      .def_prop_ro("regions", &Model::regions);
}

}  // namespace ultrafast
