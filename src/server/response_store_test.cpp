#include "server/response_store.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace weir {
namespace {

TEST(ResponseStoreTest, GivesBackWhatWasPutUntilItIsErased) {
  ResponseStore store;
  store.put("a", {.response = "{}", .items = "[]"});
  EXPECT_EQ(store.bytes(), 5);
  const auto kept = store.get("a");
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->response, "{}");
  EXPECT_EQ(kept->items, "[]");
  EXPECT_EQ(store.get("b"), nullptr);
  EXPECT_TRUE(store.erase("a"));
  EXPECT_FALSE(store.erase("a"));
  EXPECT_EQ(store.get("a"), nullptr);
  EXPECT_EQ(store.count(), 0);
  EXPECT_EQ(store.bytes(), 0);
  EXPECT_EQ(kept->response, "{}") << "who holds an entry keeps it";
}

TEST(ResponseStoreTest, TheLeastRecentlyUsedGoesFirst) {
  ResponseStore store({.bytes = 1000, .count = 2});
  store.put("a", {});
  store.put("b", {});
  store.get("a");
  store.put("c", {});
  EXPECT_NE(store.get("a"), nullptr);
  EXPECT_EQ(store.get("b"), nullptr);
  EXPECT_NE(store.get("c"), nullptr);
}

TEST(ResponseStoreTest, BytesAreBounded) {
  ResponseStore store({.bytes = 20, .count = 100});
  store.put("a", {.response = "12345678"});
  store.put("b", {.response = "12345678"});
  EXPECT_EQ(store.bytes(), 18);
  store.put("c", {.items = "1234567890123456789"});
  EXPECT_EQ(store.count(), 1);
  EXPECT_EQ(store.bytes(), 20);
  store.put("d", {.items = "12345678901234567890"});
  EXPECT_EQ(store.get("d"), nullptr) << "larger than all of the store";
  EXPECT_NE(store.get("c"), nullptr) << "and nothing goes for it";
}

TEST(ResponseStoreTest, ThreadsMayShareIt) {
  ResponseStore store({.bytes = 400, .count = 8});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&store, t] {
      for (int i = 0; i < 1000; ++i) {
        const std::string id = std::to_string(t) + "-" + std::to_string(i);
        store.put(id, {.response = id});
        if (const auto kept = store.get(id)) {
          EXPECT_EQ(kept->response, id);
        }
        if (i % 3 == 0) store.erase(id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(store.count(), 8);
  EXPECT_LE(store.bytes(), 400);
}

}  // namespace
}  // namespace weir
