#ifndef EPS_SERVER_CORE_TESTING_EVENT_TEXT_H_
#define EPS_SERVER_CORE_TESTING_EVENT_TEXT_H_

// Events and effects of a shard core as text, one line each, so that two runs can be compared. The
// text holds every field; a payload appears as its size and CRC32C. Durations measured by a backend
// are left out, because they differ from run to run.

#include <string>

#include "eps/v1/control.pb.h"
#include "eps_server/core/events.h"

namespace eps {

std::string ToText(const Event& event);
std::string ToText(const Effect& effect);
// Leaves out the fields that depend on measured durations.
std::string ToText(v1::StatusReply status);

}  // namespace eps

#endif  // EPS_SERVER_CORE_TESTING_EVENT_TEXT_H_
