#include "pick.h"

#include <algorithm>
#include <limits>

namespace ultrafast {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Above this, selecting by a threshold scan would insert too often; partition instead.
constexpr std::size_t kScanLimit = 1024;

}  // namespace

Picker::Picker(const KernelTable& kernels, std::int32_t vocabulary)
    : kernels_(kernels),
      vocabulary_(vocabulary),
      adjusted_(static_cast<std::size_t>(vocabulary)),
      noise_(static_cast<std::size_t>((vocabulary + 31) / 32 * 32)),
      counts_(static_cast<std::size_t>(vocabulary)) {}

PickResult Picker::pick(const float* logits, const PickRequest& request) {
  PickResult result;
  if (!kernels_.finite(logits, vocabulary_)) {
    result.failed = true;
    return result;
  }
  if (request.want_token) {
    std::copy_n(logits, vocabulary_, adjusted_.begin());
    adjust(request);
    result.token = sample(request);
    result.failed = result.token < 0;
  }
  if (request.want_top && !result.failed) {
    const float maximum = logits[kernels_.arg_max(logits, 0, vocabulary_)];
    const float sum = kernels_.exp_sum(logits, maximum, vocabulary_, noise_.data());
    const float log_sum = maximum + kernels_.log(sum);
    if (result.token >= 0) result.logprob = logits[result.token] - log_sum;
    top_logprobs(logits, log_sum, request.sampling->top_logprobs, result);
  }
  return result;
}

void Picker::adjust(const PickRequest& request) {
  for (const Bias& bias : request.sampling->logit_bias) adjusted_[static_cast<std::size_t>(bias.token)] += bias.value;
  if (request.sampling->penalises()) apply_penalties(request);
  if (request.allowed_mask == nullptr) return;
  for (std::int32_t token = 0; token < vocabulary_; ++token) {
    const bool allowed = (request.allowed_mask[token / 32] >> (token % 32) & 1u) != 0;
    if (!allowed) adjusted_[static_cast<std::size_t>(token)] = kMinusInfinity;
  }
}

// Repetition counts prompt and answer; presence and frequency the answer only.
void Picker::apply_penalties(const PickRequest& request) {
  const Sampling& sampling = *request.sampling;
  constexpr std::int32_t kSeen = 1 << 30;  // marks a token of the prompt beside the answer's count
  touched_.clear();
  for (std::size_t i = 0; i < request.path.size(); ++i) {
    const std::int32_t token = request.path[i];
    std::int32_t& count = counts_[static_cast<std::size_t>(token)];
    if (count == 0) touched_.push_back(token);
    if (i < static_cast<std::size_t>(request.prompt_length)) {
      count |= kSeen;
    } else {
      ++count;
    }
  }
  for (const std::int32_t token : touched_) {
    float& logit = adjusted_[static_cast<std::size_t>(token)];
    std::int32_t& count = counts_[static_cast<std::size_t>(token)];
    const std::int32_t answered = count & ~kSeen;
    logit = logit > 0.0f ? logit / sampling.repetition_penalty : logit * sampling.repetition_penalty;
    if (answered > 0) {
      logit -= sampling.frequency_penalty * static_cast<float>(answered);
      logit -= sampling.presence_penalty;
    }
    count = 0;
  }
}

std::int32_t Picker::sample(const PickRequest& request) {
  const Sampling& sampling = *request.sampling;
  const std::int32_t best = kernels_.arg_max(adjusted_.data(), 0, vocabulary_);
  if (adjusted_[static_cast<std::size_t>(best)] == kMinusInfinity) return -1;
  if (sampling.temperature == 0.0f) return best;
  // Shifting by the maximum first keeps every value finite however small the temperature.
  const float maximum = adjusted_[static_cast<std::size_t>(best)];
  for (float& logit : adjusted_) logit = (logit - maximum) / sampling.temperature;
  const NoiseKey key{sampling.seed, sampling.choice, request.output_index};
  const bool filtered = sampling.top_k > 0 || sampling.top_p < 1.0f || sampling.min_p > 0.0f;
  return filtered ? sample_filtered(sampling, key) : sample_all(key, best);
}

std::int32_t Picker::sample_all(const NoiseKey& key, std::int32_t best) {
  kernels_.gumbel(key, nullptr, vocabulary_, noise_.data());
  for (std::int32_t i = 0; i < vocabulary_; ++i) {
    const auto index = static_cast<std::size_t>(i);
    noise_[index] += adjusted_[index];
  }
  const std::int32_t token = kernels_.arg_max(noise_.data(), 0, vocabulary_);
  return adjusted_[static_cast<std::size_t>(token)] == kMinusInfinity ? best : token;
}

void Picker::select_best(const float* logits, std::size_t count) {
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  const auto vocabulary = static_cast<std::size_t>(vocabulary_);
  count = std::min(count, vocabulary);
  candidates_.clear();
  if (count == 0) return;
  if (count > kScanLimit) {
    for (std::int32_t token = 0; token < vocabulary_; ++token) candidates_.push_back({logits[token], token});
    if (count < vocabulary) {
      std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(count), candidates_.end(),
                       before);
    }
    candidates_.resize(count);
    std::sort(candidates_.begin(), candidates_.end(), before);
    return;
  }
  // A heap whose top is the worst kept; ids ascend, so an equal logit never displaces an earlier one.
  for (std::int32_t token = 0; token < vocabulary_; ++token) {
    if (candidates_.size() < count) {
      candidates_.push_back({logits[token], token});
      std::push_heap(candidates_.begin(), candidates_.end(), before);
    } else if (logits[token] > candidates_.front().logit) {
      std::pop_heap(candidates_.begin(), candidates_.end(), before);
      candidates_.back() = {logits[token], token};
      std::push_heap(candidates_.begin(), candidates_.end(), before);
    }
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), before);
}

float Picker::probability_of(float logit) const {
  float probability = 0.0f;
  kernels_.exp_sum(&logit, 0.0f, 1, &probability);
  return probability;
}

// The shortest run of best candidates whose probability reaches top_p, of what top_k left.
void Picker::keep_top_p(float top_p, std::size_t top_k) {
  const auto vocabulary = static_cast<std::size_t>(vocabulary_);
  float total = 0.0f;
  if (top_k < vocabulary) {
    select_best(adjusted_.data(), top_k);
    for (std::size_t i = 0; i < candidates_.size(); ++i) noise_[i] = candidates_[i].logit;
    total = kernels_.exp_sum(noise_.data(), 0.0f, static_cast<std::int32_t>(candidates_.size()), noise_.data());
  } else {
    total = kernels_.exp_sum(adjusted_.data(), 0.0f, vocabulary_, noise_.data());
  }
  const float wanted = top_p * total;
  for (std::size_t count = 256;; count *= 16) {
    if (top_k >= vocabulary) select_best(adjusted_.data(), count);
    float sum = 0.0f;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      sum += probability_of(candidates_[i].logit);
      if (sum >= wanted) {
        candidates_.resize(i + 1);
        return;
      }
    }
    if (top_k < vocabulary || candidates_.size() == vocabulary) return;  // rounding kept the sum below: keep all
  }
}

std::int32_t Picker::sample_filtered(const Sampling& sampling, const NoiseKey& key) {
  const auto vocabulary = static_cast<std::size_t>(vocabulary_);
  const std::size_t top_k =
      sampling.top_k > 0 ? std::min(static_cast<std::size_t>(sampling.top_k), vocabulary) : vocabulary;
  ids_.clear();
  if (sampling.top_p >= 1.0f && top_k == vocabulary) {
    kernels_.exp_sum(adjusted_.data(), 0.0f, vocabulary_, noise_.data());
    for (std::int32_t token = 0; token < vocabulary_; ++token) {
      if (noise_[static_cast<std::size_t>(token)] >= sampling.min_p) ids_.push_back(token);
    }
  } else {
    if (sampling.top_p < 1.0f) {
      keep_top_p(sampling.top_p, top_k);
    } else {
      select_best(adjusted_.data(), top_k);
    }
    for (const Candidate& candidate : candidates_) {
      // Relative to the best, which is exp(0); candidates are in descending order.
      if (candidate.logit == kMinusInfinity || probability_of(candidate.logit) < sampling.min_p) break;
      ids_.push_back(candidate.token);
    }
  }
  kernels_.gumbel(key, ids_.data(), static_cast<std::int32_t>(ids_.size()), noise_.data());
  std::int32_t best = -1;
  float best_score = kMinusInfinity;
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    const float score = adjusted_[static_cast<std::size_t>(ids_[i])] + noise_[i];
    if (best < 0 || score > best_score || (score == best_score && ids_[i] < best)) {
      best = ids_[i];
      best_score = score;
    }
  }
  return best;
}

void Picker::top_logprobs(const float* logits, float log_sum, std::int32_t count, PickResult& result) {
  select_best(logits, static_cast<std::size_t>(count));
  result.top.reserve(candidates_.size());
  for (const Candidate& candidate : candidates_) result.top.push_back({candidate.token, candidate.logit - log_sum});
}

}  // namespace ultrafast
