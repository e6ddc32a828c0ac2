// What may lie in the directory instead of the files that were written: none of it may be returned, followed or cause
// an error, and what is not ours stays.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <cstring>
#include <limits>

#include "state/block_store.h"
#include "state/block_store_testing.h"

namespace weir {
namespace {

const std::vector<size_t> kSizes = {20, 0, 41};
constexpr size_t kFileBytes = 80 + 3 * 8 + 61;

class BlockStoreDamage : public testing::Test {
 protected:
  BlockStore::Options options(uint64_t identity = 1) const {
    return {.directory = folder_.path(), .disk_bytes = 100000, .identity = {identity, 2}, .warn = [](auto) {}};
  }
  void put_file(const StoreKey& key, uint64_t identity = 1) {
    BlockStore store(options(identity));
    put(store, key, block_of(key, kSizes));
    store.flush();
  }
  std::filesystem::path file(const StoreKey& key) const { return file_of(folder_.path(), key); }

  TemporaryFolder folder_;
  const StoreKey key_ = key_of(1);
};

TEST_F(BlockStoreDamage, AnyFlippedBitIsFoundAtTheStartOrOnReturn) {
  put_file(key_);
  const std::string whole = read_bytes(file(key_));
  ASSERT_EQ(whole.size(), kFileBytes);
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const bool while_open : {false, true}) {
      write_bytes(file(key_), whole);
      std::optional<BlockStore> store;
      if (while_open) store.emplace(options());
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 1 << at % 8);
      write_bytes(file(key_), damaged);
      if (!while_open) store.emplace(options());
      EXPECT_FALSE(get(*store, key_, kSizes)) << "byte " << at;
      store->flush();
      const BlockStore::Counters counters = store->counters();
      const bool version = at >= 8 && at < 12;
      EXPECT_EQ(counters.dropped_damaged, version ? 0 : 1) << "byte " << at;
      EXPECT_EQ(counters.dropped_foreign, version ? 1 : 0) << "byte " << at;
      EXPECT_EQ(std::filesystem::exists(file(key_)), version) << "byte " << at;
      EXPECT_EQ(counters.misses, 1);
      EXPECT_EQ(counters.bytes_disk, 0);
    }
  }
}

TEST_F(BlockStoreDamage, AnyOtherLengthIsDamage) {
  put_file(key_);
  const std::string whole = read_bytes(file(key_));
  for (size_t length = 0; length < whole.size() + 3; ++length) {
    if (length == whole.size()) continue;
    for (const bool while_open : {false, true}) {
      write_bytes(file(key_), whole);
      std::optional<BlockStore> store;
      if (while_open) store.emplace(options());
      write_bytes(file(key_), (whole + "xyz").substr(0, length));
      if (!while_open) store.emplace(options());
      EXPECT_FALSE(get(*store, key_, kSizes)) << length;
      store->flush();
      EXPECT_EQ(store->counters().dropped_damaged, 1) << length;
      EXPECT_FALSE(std::filesystem::exists(file(key_))) << length;
    }
  }
  BlockStore store(options());
  put(store, key_, block_of(key_, kSizes));
  store.flush();
  EXPECT_EQ(get(store, key_, kSizes), block_of(key_, kSizes)) << "a dropped block can be put again";
}

TEST_F(BlockStoreDamage, FilesOfAnotherIdentityAreLeftAndNotRead) {
  put_file(key_, 1);
  {
    BlockStore other(options(2));
    EXPECT_EQ(other.counters().dropped_foreign, 1);
    EXPECT_EQ(other.counters().blocks_disk, 0);
    EXPECT_FALSE(other.contains(key_));
    EXPECT_FALSE(get(other, key_, kSizes));
  }
  BlockStore store(options(1));
  EXPECT_EQ(store.counters().dropped_foreign, 0);
  EXPECT_TRUE(get(store, key_, kSizes));
  put_file(key_, 2);  // takes the name, while the first is open
  EXPECT_FALSE(get(store, key_, kSizes));
  store.flush();
  EXPECT_EQ(store.counters().dropped_foreign, 1);
  EXPECT_EQ(store.counters().bytes_disk, 0);
  BlockStore other(options(2));
  EXPECT_TRUE(get(other, key_, kSizes)) << "not removed by the first";
}

TEST_F(BlockStoreDamage, AFutureVersionIsLeft) {
  put_file(key_);
  std::string bytes = read_bytes(file(key_));
  bytes[8] = 2;
  const XXH64_hash_t checksum = XXH3_64bits((bytes.substr(0, 72) + bytes.substr(80, 24)).data(), 96);
  std::memcpy(bytes.data() + 72, &checksum, 8);
  write_bytes(file(key_), bytes);
  BlockStore store(options());
  EXPECT_EQ(store.counters().dropped_foreign, 1);
  EXPECT_FALSE(get(store, key_, kSizes));
  EXPECT_EQ(read_bytes(file(key_)), bytes);
  put(store, key_, block_of(key_, kSizes));  // its name is taken over
  store.flush();
  EXPECT_TRUE(get(store, key_, kSizes));
}

TEST_F(BlockStoreDamage, SizesThatOverflowAreDamageThoughTheirChecksumIsRight) {
  for (const int64_t size : {int64_t{-1}, std::numeric_limits<int64_t>::max(), int64_t{1} << 40, int64_t{61}}) {
    put_file(key_);
    std::string bytes = read_bytes(file(key_));
    for (const size_t at : {80, 96}) std::memcpy(bytes.data() + at, &size, 8);
    const XXH64_hash_t checksum = XXH3_64bits((bytes.substr(0, 72) + bytes.substr(80, 24)).data(), 96);
    std::memcpy(bytes.data() + 72, &checksum, 8);
    write_bytes(file(key_), bytes);
    BlockStore store(options());
    EXPECT_EQ(store.counters().dropped_damaged, 1) << size;
    EXPECT_FALSE(std::filesystem::exists(file(key_)));
  }
}

TEST_F(BlockStoreDamage, AFileUnderTheNameOfAnotherKeyIsDamage) {
  const StoreKey other = {key_.high, key_.low + 1};  // the same folder
  put_file(key_);
  std::filesystem::copy_file(file(key_), file(other));
  const StoreKey elsewhere = {key_.high ^ uint64_t{1} << 60, key_.low};
  std::filesystem::create_directory(file(elsewhere).parent_path());
  std::filesystem::copy_file(file(key_), file(elsewhere).parent_path() / BlockFiles::file_name(key_));
  BlockStore store(options());
  EXPECT_EQ(store.counters().dropped_damaged, 2);
  EXPECT_EQ(store.counters().blocks_disk, 1);
  EXPECT_FALSE(get(store, other, kSizes));
  EXPECT_TRUE(get(store, key_, kSizes));
}

TEST_F(BlockStoreDamage, LinksAreNotFollowed) {
  TemporaryFolder outside;
  put_file(key_);
  const std::filesystem::path target = outside.path() / "target";
  for (const bool while_open : {false, true}) {
    for (const bool dangling : {false, true}) {
      put_file(key_);
      std::optional<BlockStore> store;
      if (while_open) store.emplace(options());
      std::filesystem::rename(file(key_), target);
      const std::string bytes = read_bytes(target);
      std::filesystem::create_symlink(dangling ? outside.path() / "none" : target, file(key_));
      if (!while_open) store.emplace(options());
      EXPECT_FALSE(get(*store, key_, kSizes));
      store->flush();
      EXPECT_EQ(store->counters().dropped_damaged, 1);
      EXPECT_FALSE(std::filesystem::is_symlink(file(key_)));
      EXPECT_EQ(read_bytes(target), bytes);
      std::filesystem::create_symlink(target, file(key_));  // and nothing is written through one
      put(*store, key_, block_of(key_, {7}));
      store->flush();
      EXPECT_EQ(read_bytes(target), bytes);
      EXPECT_TRUE(get(*store, key_, {7}));
      store.reset();
      std::filesystem::remove(file(key_));
    }
  }
  // A link in place of a folder: nothing goes through.
  std::filesystem::remove(file(key_).parent_path());
  std::filesystem::create_directory_symlink(outside.path(), file(key_).parent_path());
  BlockStore store(options());
  put(store, key_, block_of(key_, kSizes));
  store.flush();
  EXPECT_EQ(store.counters().failed_writes, 1);
  EXPECT_FALSE(get(store, key_, kSizes));
  EXPECT_FALSE(std::filesystem::exists(outside.path() / BlockFiles::file_name(key_)));
}

TEST_F(BlockStoreDamage, PipesAndFoldersInPlaceOfFilesDoNoHarm) {
  put_file(key_);
  std::filesystem::remove(file(key_));
  ASSERT_EQ(::mkfifo(file(key_).c_str(), 0600), 0);
  {
    BlockStore store(options());
    EXPECT_EQ(store.counters().dropped_damaged, 1);
    EXPECT_FALSE(std::filesystem::exists(file(key_)));
  }
  std::filesystem::create_directory(file(key_));
  BlockStore store(options());
  EXPECT_EQ(store.counters().dropped_damaged, 1);
  put(store, key_, block_of(key_, kSizes));
  store.flush();
  EXPECT_EQ(store.counters().failed_writes, 1);
  EXPECT_FALSE(get(store, key_, kSizes));
  EXPECT_TRUE(std::filesystem::is_directory(file(key_)));
}

TEST_F(BlockStoreDamage, LeftoversGoUnlessALivingProcessWritesThem) {
  put_file(key_);
  const std::filesystem::path dead = file(key_).string() + ".1-2-3.tmp";
  const std::filesystem::path living = file(key_).string() + ".1-2-4.tmp";
  write_bytes(dead, "half");
  const int lock = ::open(living.c_str(), O_WRONLY | O_CREAT, 0600);
  ASSERT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);
  {
    BlockStore store(options());
    EXPECT_EQ(store.counters().dropped_leftover, 1);
    EXPECT_FALSE(std::filesystem::exists(dead));
    EXPECT_TRUE(std::filesystem::exists(living));
  }
  ::close(lock);
  BlockStore store(options());
  EXPECT_EQ(store.counters().dropped_leftover, 1);
  EXPECT_FALSE(std::filesystem::exists(living));
  EXPECT_TRUE(get(store, key_, kSizes));
}

TEST_F(BlockStoreDamage, OtherPeoplesFilesAreLeftAlone) {
  put_file(key_);
  const std::filesystem::path folder = file(key_).parent_path();
  const std::string name = BlockFiles::file_name(key_);
  const std::vector<std::filesystem::path> others = {
      folder_.path() / "notes.txt",          folder_.path() / name,       folder / name.substr(0, 32),
      folder / ("x" + name.substr(1)),       folder / (name + ".backup"), folder / "a.tmp",
      folder / (name.substr(0, 32) + ".tmp")};
  for (const std::filesystem::path& other : others) write_bytes(other, "mine");
  BlockStore store(options());
  EXPECT_EQ(store.counters().dropped_damaged + store.counters().dropped_leftover, 0);
  for (const std::filesystem::path& other : others) EXPECT_EQ(read_bytes(other), "mine") << other;
}

TEST_F(BlockStoreDamage, AVanishedDirectoryMeansNotCached) {
  const std::filesystem::path directory = folder_.path() / "cache";
  int warnings = 0;
  BlockStore::Options vanishing = options();
  vanishing.directory = directory;
  vanishing.warn = [&](std::string_view) { ++warnings; };
  BlockStore store(vanishing);
  put(store, key_, block_of(key_, kSizes));
  store.flush();
  std::filesystem::remove_all(file_of(directory, key_).parent_path());  // a folder: made again
  EXPECT_FALSE(get(store, key_, kSizes));
  EXPECT_FALSE(store.contains(key_));
  put(store, key_, block_of(key_, kSizes));
  store.flush();
  EXPECT_EQ(warnings, 0);
  EXPECT_TRUE(get(store, key_, kSizes));

  std::filesystem::remove_all(directory);
  EXPECT_FALSE(get(store, key_, kSizes));
  EXPECT_EQ(store.counters().misses, 2);
  EXPECT_EQ(store.counters().bytes_disk, 0);
  for (const uint64_t n : {1, 2, 3}) put(store, key_of(n), block_of(key_of(n), kSizes));
  store.flush();
  EXPECT_EQ(store.counters().failed_writes, 3);
  EXPECT_EQ(warnings, 1);
}

}  // namespace
}  // namespace weir
