#include "planner/simulator/scenario.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace eps::planner::simulator {
namespace {

absl::Status Refuse(absl::string_view field, absl::string_view expected, double found) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", expected, ", found ", found));
}

// A field with its name in messages.
struct Field {
  const char* name;
  double value;
};

absl::Status CheckAmount(absl::string_view prefix, const Field& field, const char* unit) {
  if (std::isfinite(field.value) && field.value >= 0) return absl::OkStatus();
  return Refuse(absl::StrCat(prefix, field.name),
                absl::StrCat("a finite number of ", unit, ", 0 or more"), field.value);
}

absl::Status ValidateAmounts(const Scenario& scenario) {
  const Field seconds[] = {{"cut", scenario.cut.value()},
                           {"worker_restart", scenario.worker_restart.value()},
                           {"server_restart", scenario.server_restart.value()},
                           {"duration", scenario.duration.value()}};
  for (const Field& field : seconds) EPS_RETURN_IF_ERROR(CheckAmount("", field, "seconds"));
  const Field failures[] = {{"worker_failures", scenario.worker_failures.value()},
                            {"server_failures", scenario.server_failures.value()}};
  for (const Field& field : failures) {
    EPS_RETURN_IF_ERROR(CheckAmount("", field, "failures per second"));
  }
  return absl::OkStatus();
}

absl::Status ValidateSpeeds(const Scenario& scenario) {
  if (!(scenario.slow_fraction >= 0 && scenario.slow_fraction <= 1)) {
    return Refuse("slow_fraction", "a fraction of the workers, 0 to 1", scenario.slow_fraction);
  }
  if (!(scenario.slow_factor >= 1 && std::isfinite(scenario.slow_factor))) {
    return Refuse("slow_factor", "a finite factor of 1 or more", scenario.slow_factor);
  }
  // Above this, the slowest of many workers is slower than any live machine would be.
  constexpr double kMostJitter = 3;
  if (!(scenario.jitter >= 0 && scenario.jitter <= kMostJitter)) {
    return Refuse("jitter", absl::StrCat("a sigma of 0 to ", kMostJitter), scenario.jitter);
  }
  return absl::OkStatus();
}

// Checks that the times of a list are valid and in order.
template <class Happening>
absl::Status ValidateOrder(const char* name, const std::vector<Happening>& list) {
  Seconds last;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string prefix = absl::StrCat(name, "[", i, "].");
    EPS_RETURN_IF_ERROR(CheckAmount(prefix, {"at", list[i].at.value()}, "seconds"));
    if (list[i].at < last) {
      return Refuse(absl::StrCat(prefix, "at"),
                    absl::StrCat("a time not before the previous one, ", last.value(), " s"),
                    list[i].at.value());
    }
    last = list[i].at;
  }
  return absl::OkStatus();
}

absl::Status ValidateMembership(const Scenario& scenario) {
  EPS_RETURN_IF_ERROR(ValidateOrder("membership", scenario.membership));
  int64_t workers = scenario.shape.workers;
  for (size_t i = 0; i < scenario.membership.size(); ++i) {
    workers += scenario.membership[i].workers;
    if (workers < 1 || workers > INT32_MAX) {
      return Refuse(absl::StrCat("membership[", i, "].workers"),
                    "a total of 1 to 2147483647 workers after the change",
                    static_cast<double>(workers));
    }
  }
  return absl::OkStatus();
}

}  // namespace

const char* ReplayName(Replay replay) {
  switch (replay) {
    case Replay::kRollback:
      return "rollback";
    case Replay::kFrontier:
      return "frontier";
    case Replay::kLog:
      return "log";
  }
  return "unknown";
}

uint32_t Scenario::most_workers() const {
  int64_t count = shape.workers;
  int64_t most = count;
  for (const MembershipChange& change : membership) {
    count += change.workers;
    most = std::max(most, count);
  }
  return static_cast<uint32_t>(most);
}

void Scenario::SetWorkers(uint32_t workers) {
  shape.workers = workers;
  if (workers == 0) return;  // Validate refuses this
  work.tokens = work.tokens / work.parts * workers;
  work.model_flops = static_cast<double>(workers) / work.parts * work.model_flops;
  work.parts = workers;
}

void Scenario::SetServers(uint32_t servers) {
  shape.servers = servers;
  if (hardware.one_machine && hardware.workers.front().device.host) return;
  hardware.servers.resize(1);
  hardware.servers.front().count = servers;
}

absl::Status Scenario::Validate() const {
  if (work.stages.empty()) return Refuse("stages", "one stage or more", 0);
  if (shape.workers == 0 || shape.workers > INT32_MAX) {
    return Refuse("workers", "1 to 2147483647", shape.workers);
  }
  if (work.parts == 0) return Refuse("parts", "1 or more", 0);
  if (shape.servers == 0) return Refuse("servers", "1 or more", 0);
  EPS_RETURN_IF_ERROR(ValidateAmounts(*this));
  EPS_RETURN_IF_ERROR(ValidateSpeeds(*this));
  EPS_RETURN_IF_ERROR(ValidateOrder("deaths", deaths));
  EPS_RETURN_IF_ERROR(ValidateMembership(*this));
  if (steps == 0 && duration == Seconds(0)) {
    return absl::InvalidArgumentError(
        "steps, duration: expected one of them above 0, found 0 and 0");
  }
  return absl::OkStatus();
}

}  // namespace eps::planner::simulator
