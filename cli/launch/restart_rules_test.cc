#include "cli/launch/restart_rules.h"

#include <signal.h>

#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

using Action = RestartRules::Action;

constexpr uint64_t kMany = 100;

// The status of wait(2) for an exit code. A signal that ends a process is its own status.
int Exit(int code) { return code << 8; }

TEST(RestartRulesTest, FollowWhatTheRunSurvives) {
  struct Case {
    int status;
    std::vector<Survives> worker, server;  // the runs that start it again
  };
  const Survives stopped = Survives::kStoppedWorkers;
  const Survives killed = Survives::kKilledWorkers;
  const Survives all = Survives::kKilledProcesses;
  const std::vector<Case> cases = {
      {Exit(0), {}, {}},
      {Exit(65), {}, {}},
      {Exit(69), {all}, {all}},
      {Exit(75), {stopped, killed, all}, {}},
      {Exit(130), {stopped, killed, all}, {all}},
      {Exit(143), {stopped, killed, all}, {all}},
      {SIGTERM, {stopped, killed, all}, {all}},
      {SIGINT, {stopped, killed, all}, {all}},
      {SIGKILL, {killed, all}, {all}},
      {SIGABRT, {killed, all}, {all}},
  };
  for (const Case& c : cases) {
    std::vector<Survives> worker, server;
    for (const Survives survives : {stopped, killed, all}) {
      RestartRules rules(survives, kMany);
      if (rules.OnWorkerEnd(0, c.status) != Action::kNone) worker.push_back(survives);
      if (rules.OnServerEnd(c.status) != Action::kNone) server.push_back(survives);
    }
    EXPECT_EQ(worker, c.worker) << c.status;
    EXPECT_EQ(server, c.server) << c.status;
  }
}

TEST(RestartRulesTest, StoppedWorkersCountOnlyWithinAStep) {
  RestartRules rules(Survives::kStoppedWorkers, 2);
  EXPECT_EQ(rules.OnWorkerEnd(0, Exit(143)), Action::kReplace);
  EXPECT_EQ(rules.OnWorkerEnd(1, Exit(143)), Action::kReplace);
  EXPECT_EQ(rules.OnWorkerEnd(0, Exit(143)), Action::kRestart);
  rules.OnStep();
  EXPECT_EQ(rules.OnWorkerEnd(0, Exit(130)), Action::kReplace);
  EXPECT_EQ(rules.OnWorkerEnd(0, SIGTERM), Action::kRestart);
  EXPECT_EQ(rules.restarts(), 2u);
  EXPECT_EQ(rules.OnWorkerEnd(0, Exit(143)), Action::kNone) << "it is stopped again and again";
  rules.OnStep();
  EXPECT_EQ(rules.OnWorkerEnd(0, Exit(143)), Action::kReplace);
}

TEST(RestartRulesTest, AllChildrenShareTheRestarts) {
  RestartRules rules(Survives::kKilledProcesses, 3);
  EXPECT_EQ(rules.OnWorkerEnd(0, SIGKILL), Action::kRestart);
  rules.OnStep();
  EXPECT_EQ(rules.OnServerEnd(SIGKILL), Action::kRestart);
  EXPECT_EQ(rules.Count(), Action::kRestart);
  EXPECT_EQ(rules.OnWorkerEnd(1, SIGKILL), Action::kNone);
  EXPECT_EQ(rules.OnServerEnd(SIGKILL), Action::kNone);
  EXPECT_EQ(rules.Count(), Action::kNone);
  EXPECT_EQ(rules.restarts(), 3u);
}

}  // namespace
}  // namespace eps
