#include "formats/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <utility>

#include "formats/testing.h"

namespace weir {
namespace {

using testing::error_of;
using testing::TempFolder;

std::string text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, shows_the_bytes_of_a_file) {
  const TempFolder folder;
  folder.write("a", "hello");
  const MappedFile file = MappedFile::open(folder.file("a"));
  EXPECT_EQ(text(file), "hello");
  EXPECT_EQ(file.path(), folder.file("a"));
}

TEST(MappedFile, of_an_empty_file_is_empty) {
  const TempFolder folder;
  folder.write("a", "");
  const MappedFile file = MappedFile::open(folder.file("a"));
  EXPECT_TRUE(file.bytes().empty());
  EXPECT_EQ(file.resident_bytes(), 0);
}

TEST(MappedFile, keeps_its_address_when_moved) {
  const TempFolder folder;
  folder.write("a", "first");
  folder.write("b", "second");
  MappedFile a = MappedFile::open(folder.file("a"));
  const std::byte* address = a.bytes().data();
  MappedFile moved = std::move(a);
  EXPECT_EQ(moved.bytes().data(), address);
  MappedFile b = MappedFile::open(folder.file("b"));
  b = std::move(moved);
  EXPECT_EQ(b.bytes().data(), address);
  EXPECT_EQ(text(b), "first");
}

TEST(MappedFile, survives_removal_of_the_file) {
  const TempFolder folder;
  folder.write("a", "still here");
  const MappedFile file = MappedFile::open(folder.file("a"));
  std::filesystem::remove(folder.file("a"));
  EXPECT_EQ(text(file), "still here");
}

TEST(MappedFile, counts_resident_bytes_by_the_page_up_to_its_size) {
  const TempFolder folder;
  folder.write("a", std::string(3 * 4096 + 5, 'x'));
  const MappedFile file = MappedFile::open(folder.file("a"));
  EXPECT_EQ(text(file).size(), 3 * 4096 + 5u);  // reads every page
  EXPECT_EQ(file.resident_bytes(), 3 * 4096 + 5);
}

TEST(MappedFile, counts_a_file_of_holes_larger_than_one_kernel_call_as_absent) {
  const TempFolder folder;
  folder.write("a", "");
  const int64_t size = int64_t{600} << 20;
  std::filesystem::resize_file(folder.file("a"), static_cast<uintmax_t>(size));
  const MappedFile file = MappedFile::open(folder.file("a"));
  EXPECT_LT(file.resident_bytes(), size);
}

TEST(MappedFile, refuses_what_is_not_a_regular_file_and_says_why) {
  const TempFolder folder;
  EXPECT_EQ(error_of([&] { MappedFile::open(folder.file("no")); }),
            folder.file("no") + ": can't open: No such file or directory");
  EXPECT_EQ(error_of([&] { MappedFile::open(folder.path().string()); }),
            folder.path().string() + ": expected a regular file, found a folder");
  EXPECT_EQ(error_of([&] { MappedFile::open("/dev/zero"); }), "/dev/zero: expected a regular file, found a device");
  EXPECT_EQ(error_of([&] { MappedFile::open(std::string("a\0b", 3)); }), "'a\\x00b': a path can't contain a zero byte");
  // Must not wait for a writer.
  ASSERT_EQ(::mkfifo(folder.file("fifo").c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { MappedFile::open(folder.file("fifo")); }),
            folder.file("fifo") + ": expected a regular file, found a FIFO");
}

}  // namespace
}  // namespace weir
