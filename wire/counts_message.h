#ifndef EPS_WIRE_COUNTS_MESSAGE_H_
#define EPS_WIRE_COUNTS_MESSAGE_H_

#include "base/numerics/held_out_counts.h"
#include "eps/v1/types.pb.h"

namespace eps {

// Converts the counts of an evaluation to their message and back. Lists by class that differ in
// length are filled up with zeros.
v1::HeldOutCounts ToMessage(const HeldOutCounts& counts);
HeldOutCounts FromMessage(const v1::HeldOutCounts& message);

}  // namespace eps

#endif  // EPS_WIRE_COUNTS_MESSAGE_H_
