#include "worker/data/batch_source.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/job/data_position.h"
#include "base/job/models/model_family.h"
#include "base/status_macros.h"
#include "worker/data/masked_tokens.h"

namespace eps {
namespace {

// Rows end at a multiple of it, so that few lengths occur and kernels run well.
constexpr uint32_t kRowMultiple = 8;

absl::Status CheckPlace(const JobSpec& spec, Step step, uint32_t index) {
  const uint64_t batches = uint64_t{spec.training.parts} * spec.training.micro_batches;
  if (step.value() >= 1 && index < batches) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("no micro-batch ", index, " of step ",
                                                 step.value(), ": a step has ", batches,
                                                 " and steps count from 1"));
}

MicroBatch Identity(const JobSpec& spec, Step step, uint32_t index) {
  MicroBatch batch;
  batch.step = step;
  batch.index = index;
  batch.samples = spec.training.micro_batch_size;
  batch.seq_len = spec.training.seq_len;
  return batch;
}

// Appends the samples to `batch`, and cuts its rows where all of them have only padding.
void Fill(const JobSpec& spec, const SampleSource& data, const std::vector<uint64_t>& samples,
          MicroBatch* batch) {
  uint32_t longest = 1;
  for (const uint64_t sample : samples) {
    longest = std::max(longest, data.Length(sample, batch->seq_len));
  }
  const uint32_t rounded = (longest + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
  batch->seq_len = std::min(batch->seq_len, rounded);
  const uint64_t tokens = uint64_t{batch->seq_len} * samples.size();
  batch->tokens.reserve(tokens);
  batch->labels.reserve(tokens);
  for (const uint64_t sample : samples) data.Read(sample, batch);
  if (FamilyOf(spec.model.type).labels(spec.model) == LabelKind::kMaskedTokens) {
    MaskTokens(spec, samples, batch);
  }
}

// Batches of training samples.
class DataBatchSource final : public BatchSource {
 public:
  DataBatchSource(JobSpec spec, const SampleSource& data) : spec_(std::move(spec)), data_(data) {}

  absl::StatusOr<MicroBatch> Get(Step step, uint32_t index) override {
    EPS_RETURN_IF_ERROR(CheckPlace(spec_, step, index));
    if (data_.tokens() != spec_.data.tokens || data_.rows() != spec_.data.samples) {
      return absl::FailedPreconditionError(
          absl::StrCat("the job was created for data of ", spec_.data.tokens, " tokens in ",
                       spec_.data.samples, " rows, but the files of data.path hold ",
                       data_.tokens(), " tokens in ", data_.rows(), " rows"));
    }
    MicroBatch batch = Identity(spec_, step, index);
    std::vector<uint64_t> samples;
    for (uint32_t slot = 0; slot < batch.samples; ++slot) {
      samples.push_back(SampleIndex(spec_, step, index, slot));
    }
    Fill(spec_, data_, samples, &batch);
    return batch;
  }

 private:
  const JobSpec spec_;
  const SampleSource& data_;
};

// The part that evaluations of both kinds of models share: samples in order.
class SampleRange : public EvaluationSource {
 public:
  SampleRange(JobSpec spec, uint64_t samples) : spec_(std::move(spec)), samples_(samples) {}

  uint32_t micro_batches() const override {
    const uint64_t size = spec_.training.micro_batch_size;
    return static_cast<uint32_t>((samples_ + size - 1) / size);
  }
  absl::StatusOr<MicroBatch> Get(uint32_t index) override {
    const uint64_t first = uint64_t{index} * spec_.training.micro_batch_size;
    if (first >= samples_) {
      return absl::InvalidArgumentError(
          absl::StrCat("no micro-batch ", index, " of ", samples_, " held-out samples"));
    }
    MicroBatch batch = Identity(spec_, Step(0), index);
    batch.held_out = true;
    batch.samples = static_cast<uint32_t>(std::min<uint64_t>(batch.samples, samples_ - first));
    return batch;
  }

 protected:
  const JobSpec& spec() const { return spec_; }

 private:
  const JobSpec spec_;
  const uint64_t samples_;
};

// Held-out samples of data.
class DataEvaluationSource final : public SampleRange {
 public:
  DataEvaluationSource(const JobSpec& spec, const SampleSource& data, uint64_t samples)
      : SampleRange(spec, samples), data_(data) {}

  absl::StatusOr<MicroBatch> Get(uint32_t index) override {
    EPS_ASSIGN_OR_RETURN(MicroBatch batch, SampleRange::Get(index));
    std::vector<uint64_t> samples(batch.samples);
    std::iota(samples.begin(), samples.end(), uint64_t{index} * spec().training.micro_batch_size);
    Fill(spec(), data_, samples, &batch);
    return batch;
  }

 private:
  const SampleSource& data_;
};

// Batches without tokens.
class EmptyBatchSource final : public BatchSource {
 public:
  explicit EmptyBatchSource(JobSpec spec) : spec_(std::move(spec)) {}

  absl::StatusOr<MicroBatch> Get(Step step, uint32_t index) override {
    EPS_RETURN_IF_ERROR(CheckPlace(spec_, step, index));
    return Identity(spec_, step, index);
  }

 private:
  const JobSpec spec_;
};

}  // namespace

std::unique_ptr<BatchSource> NewBatchSource(const JobSpec& spec, const SampleSource& data) {
  return std::make_unique<DataBatchSource>(spec, data);
}

std::unique_ptr<BatchSource> NewEmptyBatchSource(const JobSpec& spec) {
  return std::make_unique<EmptyBatchSource>(spec);
}

absl::StatusOr<std::unique_ptr<EvaluationSource>> NewEvaluationSource(const JobSpec& spec,
                                                                      const SampleSource& data,
                                                                      uint64_t samples) {
  const uint32_t seq_len = spec.training.seq_len;
  if (data.row_tokens() > 0 && data.row_tokens() != seq_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.eval_path holds rows of ", data.row_tokens(), " tokens, but training.seq_len is ",
        seq_len, "; make the held-out data with the --seq-len of the training data"));
  }
  const uint64_t whole = data.samples(seq_len);
  if (whole == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.eval_path holds ", data.tokens(),
                     " tokens, a sample needs training.seq_len + 1 = ", uint64_t{seq_len} + 1));
  }
  if (samples > whole) {
    return absl::InvalidArgumentError(
        absl::StrCat("training.eval_samples is ", samples, ", but data.eval_path holds ", whole,
                     " whole samples of training.seq_len = ", seq_len, "; 0 uses all of them"));
  }
  return std::make_unique<DataEvaluationSource>(spec, data, samples == 0 ? whole : samples);
}

std::unique_ptr<EvaluationSource> NewEmptyEvaluationSource(const JobSpec& spec, uint64_t samples) {
  return std::make_unique<SampleRange>(spec, samples);
}

}  // namespace eps
