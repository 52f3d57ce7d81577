#ifndef EPS_CLI_DRIVER_TRAIN_TEXT_H_
#define EPS_CLI_DRIVER_TRAIN_TEXT_H_

// Lines that `eps train` prints at the end of a run.

#include <cstdint>
#include <string>
#include <vector>

#include "base/job/evaluation/evaluation_metrics.h"
#include "base/job/models/model_spec.h"
#include "eps/v1/types.pb.h"

namespace eps {

// Compares the mean loss of the last steps with `entropy`, that of guessing every token from its
// frequency in the data. Both are in nats.
std::string LossText(const ModelSpec& model, double loss, uint64_t steps, double entropy);

// Says the loss and the figures of an evaluation on held-out data.
std::string HeldOutText(const v1::StepRecord& evaluation, const std::vector<Figure>& figures = {});

// Returns the command that continues a prompt with the checkpoint; empty for a model without
// tokens.
std::string GenerateHint(const ModelSpec& model, const std::string& checkpoint);

}  // namespace eps

#endif  // EPS_CLI_DRIVER_TRAIN_TEXT_H_
