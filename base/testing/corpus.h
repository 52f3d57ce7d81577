#ifndef EPS_BASE_TESTING_CORPUS_H_
#define EPS_BASE_TESTING_CORPUS_H_

// Corpora of hostile inputs for parsers. A corpus is a tar archive with one member per input.

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace eps {

// Returns the inputs in the archive at `path` by the names of the members. NotFound if there is no
// such file, DataLoss with the offset if the archive is damaged or has a name twice.
absl::StatusOr<std::map<std::string, std::string>> ReadCorpus(const std::string& path);

// While it lives, an abort of the process prints the input that is being read: a check that fails
// in a parser says nothing about the test. At most one object at a time; not thread-safe.
class InputInAborts {
 public:
  InputInAborts();
  InputInAborts(const InputInAborts&) = delete;
  InputInAborts& operator=(const InputInAborts&) = delete;
  ~InputInAborts();

  // Names the input that is read next: mutation number `mutation` of `member`.
  void Set(const std::string& member, int mutation);
};

}  // namespace eps

#endif  // EPS_BASE_TESTING_CORPUS_H_
