#include "planner/papers/flow_network.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "planner/units.h"

namespace eps::planner {
namespace {

constexpr double kClose = 1e-9;  // seconds

class FlowNetworkTest : public ::testing::Test {
 protected:
  LinkId Link(double capacity) { return net_.AddLink(BytesPerSecond(capacity)); }
  TaskId Flow(double bytes, std::vector<Crossing> path, std::vector<TaskId> after = {}) {
    return net_.AddFlow(Bytes(bytes), std::move(path), std::move(after));
  }
  TaskId Work(double seconds, ResourceId on, std::vector<TaskId> after = {}) {
    return net_.AddWork(Seconds(seconds), on, std::move(after));
  }
  void ExpectFinish(TaskId task, double seconds) const {
    EXPECT_NEAR(net_.Run().FinishOf(task).value(), seconds, kClose);
  }

  FlowNetwork net_;
};

TEST_F(FlowNetworkTest, NothingTakesNoTime) { EXPECT_EQ(net_.Run().end(), Seconds(0)); }

TEST_F(FlowNetworkTest, TheSlowestLinkLimitsAFlow) {
  const LinkId fast = Link(50);
  const LinkId slow = Link(10);
  ExpectFinish(Flow(100, {{fast}, {slow}}), 10);
}

TEST_F(FlowNetworkTest, EqualFlowsShareALinkEqually) {
  const LinkId link = Link(10);
  const TaskId a = Flow(100, {{link}});
  const TaskId b = Flow(100, {{link}});
  ExpectFinish(a, 20);
  ExpectFinish(b, 20);
}

TEST_F(FlowNetworkTest, RemainingFlowsTakeFreedCapacity) {
  const LinkId link = Link(10);
  const TaskId small = Flow(50, {{link}});
  const TaskId large = Flow(100, {{link}});
  ExpectFinish(small, 10);
  ExpectFinish(large, 15);
}

// By hand: the link of 4 fills first, at 2 for each of its two flows; the flow that shares the link
// of 10 with one of them then gets 8. At 10 s the other two have ended, and the last one has 20
// bytes left at 4 per second.
TEST_F(FlowNetworkTest, FlowsShareLinksMaxMinFairly) {
  const LinkId wide = Link(10);
  const LinkId narrow = Link(4);
  const TaskId on_wide = Flow(80, {{wide}});
  const TaskId on_both = Flow(40, {{wide}, {narrow}});
  const TaskId on_narrow = Flow(20, {{narrow}});
  ExpectFinish(on_wide, 10);
  ExpectFinish(on_narrow, 10);
  ExpectFinish(on_both, 15);
}

// A read of 10 occupies the medium for 1 s, a write of 10 at twice the cost for 2 s; together 3 s.
TEST_F(FlowNetworkTest, CostsAddUpOnAMedium) {
  const LinkId medium = Link(10);
  const TaskId read = Flow(10, {{medium, 1}});
  const TaskId write = Flow(10, {{medium, 2}});
  ExpectFinish(read, 3);
  ExpectFinish(write, 3);
}

TEST_F(FlowNetworkTest, EmptyOrUnlimitedFlowsTakeNoTime) {
  const LinkId endless = net_.AddLink(kNoLimit);
  const LinkId link = Link(10);
  ExpectFinish(Flow(0, {{link}}), 0);
  const TaskId first = Flow(100, {{endless}});
  const TaskId second = Flow(100, {}, {first});
  ExpectFinish(second, 0);
  ExpectFinish(Flow(100, {{endless}, {link}}, {second}), 10);
}

TEST_F(FlowNetworkTest, TasksWaitForAllPredecessors) {
  const LinkId link = Link(10);
  const ResourceId processor = net_.AddResource();
  const TaskId flow = Flow(50, {{link}});                  // 0 to 5
  const TaskId work = Work(7, processor);                  // 0 to 7
  const TaskId joined = Flow(20, {{link}}, {flow, work});  // 7 to 9
  const TaskId last = Work(1, processor, {joined});
  ExpectFinish(joined, 9);
  ExpectFinish(last, 10);
  EXPECT_NEAR(net_.Run().end().value(), 10, kClose);
}

TEST_F(FlowNetworkTest, AResourceRunsTheLowestIdFirst) {
  const ResourceId processor = net_.AddResource();
  const TaskId running = Work(2, processor);
  const TaskId low = Work(3, processor);
  const TaskId high = Work(4, processor);
  ExpectFinish(running, 2);
  ExpectFinish(low, 5);
  ExpectFinish(high, 9);
}

TEST_F(FlowNetworkTest, ResourcesWorkSideBySide) {
  const ResourceId first = net_.AddResource();
  const ResourceId second = net_.AddResource();
  ExpectFinish(Work(2, first), 2);
  ExpectFinish(Work(3, second), 3);
}

// Forty flows in three classes over five links, each followed by work. In any order of insertion
// each flow ends at the same time, and so does the queue of equal work.
TEST(FlowNetworkOrderTest, InsertionOrderDoesNotMatter) {
  constexpr size_t kFlows = 40;
  constexpr size_t kLinks = 5;
  const auto run = [](size_t stride) {
    FlowNetwork net;
    std::vector<LinkId> links;
    for (size_t i = 0; i < kLinks; ++i) links.push_back(net.AddLink(BytesPerSecond(3.0 + i)));
    const ResourceId processor = net.AddResource();
    std::vector<TaskId> flow_of(kFlows);
    for (size_t i = 0; i < kFlows; ++i) {
      // A permutation, since the strides are prime to 40.
      const size_t flow = (i * stride) % kFlows;
      flow_of[flow] = net.AddFlow(Bytes(10.0 + flow % 3),
                                  {{links[flow % kLinks]}, {links[(flow + 2) % kLinks]}}, {});
    }
    std::vector<TaskId> work;
    for (TaskId flow : flow_of) work.push_back(net.AddWork(Seconds(0.25), processor, {flow}));
    const FlowNetwork::Schedule schedule = net.Run();
    std::vector<double> times;
    for (TaskId flow : flow_of) times.push_back(schedule.FinishOf(flow).value());
    std::vector<double> queue;
    for (TaskId w : work) queue.push_back(schedule.FinishOf(w).value());
    std::sort(queue.begin(), queue.end());
    times.insert(times.end(), queue.begin(), queue.end());
    return times;
  };
  const std::vector<double> expected = run(1);
  for (size_t stride : {3u, 7u, 11u, 39u}) EXPECT_EQ(run(stride), expected) << stride;
}

}  // namespace
}  // namespace eps::planner
