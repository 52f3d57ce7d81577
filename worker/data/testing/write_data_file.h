#ifndef EPS_WORKER_DATA_TESTING_WRITE_DATA_FILE_H_
#define EPS_WORKER_DATA_TESTING_WRITE_DATA_FILE_H_

// Writes data files for tests (docs/formats/data.md).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace eps {

// A column to write.
struct TestColumn {
  std::string name;
  std::string dtype;
  std::string bytes;
};

// Returns numbers as the bytes of a column.
template <class T>
std::string ColumnBytes(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}
// Returns rows of flags as the bytes of a bit column.
std::string BitRows(const std::vector<std::vector<int>>& rows);

// Returns a whole file. `fields` are those of the header, without the columns; tokenizer and
// provenance are empty unless given.
std::string DataFileBytes(nlohmann::json fields, const std::vector<TestColumn>& columns);
// Returns a file of kind stream with one document of these ids.
std::string StreamFileBytes(const std::vector<uint32_t>& tokens, uint64_t vocab_size,
                            const std::string& tokenizer = "");
// Returns the first bytes of `file` with another text in its header and its digest renewed.
std::string WithHeaderText(const std::string& file, const std::string& text);
// Writes a file that belongs to the running test, and returns its path.
std::string WriteTestFile(const std::string& name, const std::string& content);

}  // namespace eps

#endif  // EPS_WORKER_DATA_TESTING_WRITE_DATA_FILE_H_
