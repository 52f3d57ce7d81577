#ifndef EPS_WORKER_DATA_TOKEN_SOURCE_H_
#define EPS_WORKER_DATA_TOKEN_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "worker/relay/evaluation.h"
#include "worker/relay/relay.h"

namespace eps {

// The tokens of a run as one array of uint16: text files as bytes (a byte-level vocabulary), joined
// in the order given, or one flat .bin of little-endian uint16, memory-mapped. Immutable.
class TokenData {
 public:
  // NotFound names the file; InvalidArgument for an empty file, mixed kinds, an odd .bin size, or
  // text with a vocabulary other than 256 (the message names the .bin way). `key` is the
  // configuration key that named the files, for the errors.
  static absl::StatusOr<std::shared_ptr<const TokenData>> Open(
      const std::vector<std::string>& paths, uint32_t vocab_size,
      const std::string& key = "data.path");
  virtual ~TokenData() = default;
  virtual uint64_t size() const = 0;
  virtual uint16_t operator[](uint64_t i) const = 0;
  // Of the tokens as little-endian uint16.
  virtual std::string Sha256Hex() const = 0;
  // Entropy of the token frequencies in nats: what a model without context can reach.
  virtual double UnigramEntropy() const = 0;
  // OutOfRange names file, position and id of the first token >= vocab_size.
  virtual absl::Status CheckIds(uint32_t vocab_size) const = 0;
};

// The text that the quickstart trains on: regular files below /usr/share/common-licenses, sorted.
absl::StatusOr<std::vector<std::string>> QuickstartTextFiles();

// Micro-batches of `spec` (base/job/data_position.h). `spec` and `data` must outlive it.
std::unique_ptr<BatchSource> NewTokenBatchSource(const JobSpec& spec, const TokenData& data);
// For models without tokens (synthetic): batches that only carry their identity.
std::unique_ptr<BatchSource> NewEmptyBatchSource(const JobSpec& spec);

// Held-out samples in their order: the first `samples` of `data` (0: all whole ones), as
// micro-batches of the spec's size, of which the last may be smaller. `spec` and `data` must
// outlive it. InvalidArgument with the figures if the data does not hold them.
absl::StatusOr<std::unique_ptr<EvaluationSource>> NewTokenEvaluationSource(const JobSpec& spec,
                                                                           const TokenData& data,
                                                                           uint64_t samples);
// For models without tokens: inputs that no step of training has. REQUIRES samples >= 1.
std::unique_ptr<EvaluationSource> NewEmptyEvaluationSource(const JobSpec& spec, uint64_t samples);

}  // namespace eps

#endif  // EPS_WORKER_DATA_TOKEN_SOURCE_H_
