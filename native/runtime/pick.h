// From logits to a token: a pure function of (logits, request, position), exactness rule 10.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "../kernels/kernels.h"
#include "kv_cache.h"

namespace ultrafast {

struct TopLogprob {
  std::int32_t token;
  float logprob;
};

struct PickResult {
  std::int32_t token = -1;
  float logprob = 0.0f;         // of the token, from the raw logits
  std::vector<TopLogprob> top;  // by (logprob descending, id ascending)
  bool failed = false;          // a logit was not finite, or no token is allowed
};

struct PickRequest {
  const Sampling* sampling;
  // Tokens on the row's own path, its own included, in order of position.
  std::span<const std::int32_t> path;
  std::int32_t prompt_length;
  std::uint32_t output_index;
  const std::uint32_t* allowed_mask;  // [ceil(vocabulary / 32)] or null
  bool want_token;
  bool want_top;
};

// Scratch of one thread, grown once.
class Picker {
 public:
  Picker(const KernelTable& kernels, std::int32_t vocabulary);
  PickResult pick(const float* logits, const PickRequest& request);

 private:
  struct Candidate {
    float logit;
    std::int32_t token;
  };

  void adjust(const PickRequest& request);
  void apply_penalties(const PickRequest& request);
  std::int32_t sample(const PickRequest& request);
  std::int32_t sample_all(const NoiseKey& key, std::int32_t best);
  std::int32_t sample_filtered(const Sampling& sampling, const NoiseKey& key);
  // The `count` best of adjusted_ in order (logit descending, id ascending).
  void select_best(const float* logits, std::size_t count);
  // Unnormalised: exp of an adjusted logit, the best of which is 0.
  float probability_of(float logit) const;
  void keep_top_p(float top_p, std::size_t top_k);
  void top_logprobs(const float* logits, float log_sum, std::int32_t count, PickResult& result);

  const KernelTable& kernels_;
  const std::int32_t vocabulary_;
  std::vector<float> adjusted_;
  std::vector<float> noise_;
  std::vector<std::int32_t> counts_;
  std::vector<std::int32_t> touched_;
  std::vector<Candidate> candidates_;
  std::vector<std::int32_t> ids_;
};

}  // namespace ultrafast
