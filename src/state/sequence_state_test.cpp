#include "state/sequence_state.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>
#include <utility>

namespace weir {
namespace {

StateLayout hybrid_layout() {
  StateLayout layout;
  layout.add_page("latent", Retention::kForever, 40);
  layout.add_page("journal", Retention::kJournal, 100);
  layout.add_anchor("state", 1000);
  return layout;
}

void advance(SequenceState& sequence, int32_t rows, bool accept = true) {
  ASSERT_TRUE(sequence.prepare(rows));
  sequence.commit();
  if (accept) sequence.accept(sequence.length());
}

TEST(StateLayout, PartsAreAlignedAndDoNotOverlap) {
  StateLayout layout;
  const PageField a = layout.add_page("a", Retention::kForever, 10);
  const PageField b = layout.add_page("b", Retention::kForever, 6);
  const PageField j = layout.add_page("j", Retention::kJournal, 4);
  EXPECT_EQ(a.group, b.group);
  EXPECT_NE(a.group, j.group);
  EXPECT_EQ(a.offset, 0);
  EXPECT_EQ(b.offset, 192);  // 160 bytes, up to a multiple of 64
  EXPECT_EQ(layout.groups()[0].page_bytes, 192 + 128);
  EXPECT_EQ(layout.groups()[0].row_bytes, 16);
  EXPECT_EQ(layout.add_anchor("x", 1).offset, 0);
  EXPECT_EQ(layout.add_anchor("y", 65).offset, 64);
  EXPECT_EQ(layout.anchor_bytes(), 64 + 128);
}

TEST(BlockPool, CountsReferencesAndPoisonsWhatIsReleased) {
  RawBlockPool pool(100, 2);
  pool.poison_released(true);
  std::optional<PageRef> a = acquire_block<PageId>(pool);
  std::optional<PageRef> b = acquire_block<PageId>(pool);
  EXPECT_FALSE(acquire_block<PageId>(pool));
  std::byte* bytes = pool.view().block(a->id());
  std::memset(bytes, 1, 100);
  PageRef copy = *a;
  EXPECT_TRUE(copy.shared());
  a.reset();
  EXPECT_EQ(pool.free_count(), 0);
  EXPECT_EQ(bytes[99], std::byte{1});
  copy = PageRef();
  EXPECT_EQ(pool.free_count(), 1);
  EXPECT_EQ(bytes[99], std::byte{0xff});
  b.reset();
  EXPECT_EQ(pool.free_count(), 2);
}

TEST(SequenceState, ResumesFromOneAnchorAndAtMostSixteenJournalRows) {
  const StateLayout layout = hybrid_layout();
  StatePools pools(layout, {.pages = 100, .journal_pages = 4, .anchors = 4});
  SequenceState sequence(pools, 0);
  std::mt19937 random(1);
  while (sequence.length() < 1000) {
    advance(sequence, static_cast<int32_t>(1 + random() % 60));
    const int64_t rows = sequence.length() - sequence.anchor_position();
    EXPECT_GE(rows, 1);
    EXPECT_LE(rows, 16);
    EXPECT_LE(sequence.anchor_count(), 1);
    EXPECT_EQ(pools.pages(1).count() - pools.pages(1).free_count(), 1) << "one journal page is enough at rest";
  }
}

TEST(SequenceState, ASpanNamesTheAnchorItMustWrite) {
  const StateLayout layout = hybrid_layout();
  StatePools pools(layout, {.pages = 100, .journal_pages = 4, .anchors = 8});
  SequenceState sequence(pools, 32);
  ASSERT_TRUE(sequence.prepare(16));
  EXPECT_TRUE(sequence.span(0).anchor_writes.empty()) << "no row has crossed 16 yet";
  EXPECT_EQ(sequence.span(0).anchor, kZeroAnchor);
  sequence.commit();
  ASSERT_TRUE(sequence.prepare(1));
  SpanView span = sequence.span(3);
  EXPECT_EQ(span.first_row, 3);
  EXPECT_EQ(span.first_position, 16);
  EXPECT_EQ(span.anchor_position, 0);
  ASSERT_EQ(span.anchor_writes.size(), 1u);
  EXPECT_EQ(span.anchor_writes[0].position, 16);
  EXPECT_NE(span.pages[1][0], kNoPage);
  EXPECT_NE(span.pages[1][1], kNoPage);
  sequence.commit();
  sequence.accept(17);
  ASSERT_TRUE(sequence.prepare(100));  // rows 17..116: boundaries 32, 48, 64, 80, 96, 112
  span = sequence.span(0);
  EXPECT_EQ(span.anchor_position, 16);
  ASSERT_EQ(span.anchor_writes.size(), 4u);
  EXPECT_EQ(span.anchor_writes[0].position, 32);
  EXPECT_EQ(span.anchor_writes[1].position, 64);
  EXPECT_EQ(span.anchor_writes[2].position, 96);
  EXPECT_EQ(span.anchor_writes[3].position, 112);
  EXPECT_EQ(span.pages[1][3], kNoPage) << "a chunk inside the span keeps no journal";
  EXPECT_NE(span.pages[1][7], kNoPage);
}

TEST(SequenceState, RejectedRowsThatCrossedABoundaryCostNothing) {
  const StateLayout layout = hybrid_layout();
  StatePools pools(layout, {.pages = 100, .journal_pages = 4, .anchors = 4});
  for (int64_t accepted = 1; accepted < 60; ++accepted) {
    for (int32_t drafts = 1; drafts <= 16; ++drafts) {
      SequenceState sequence(pools, 0);
      advance(sequence, static_cast<int32_t>(accepted));
      const int64_t anchor = sequence.anchor_position();
      advance(sequence, drafts, false);
      EXPECT_EQ(sequence.rollback(accepted), accepted);
      // The old anchor is still there; one at the target itself depends on accepted rows only and may stay.
      EXPECT_TRUE(sequence.anchor_position() == anchor || sequence.anchor_position() == accepted);
    }
  }
}

TEST(SequenceState, DeepRollbackGoesToTheBackboneOrTheStart) {
  const StateLayout layout = hybrid_layout();
  StatePools pools(layout, {.pages = 100, .journal_pages = 4, .anchors = 20});
  SequenceState none(pools, 0), spaced(pools, 64);
  advance(none, 300);
  advance(spaced, 300);
  EXPECT_EQ(none.rollback(200), 0);
  EXPECT_EQ(spaced.rollback(200), 192);
  EXPECT_EQ(spaced.anchor_position(), 192);
  EXPECT_EQ(spaced.rollback(130), 128);
  EXPECT_EQ(spaced.rollback(1), 0);
}

constexpr int64_t kWindow = 40;

// Every page that the next row sees in the window of `group` is there.
void expect_window(SequenceState& sequence, int group, int64_t window) {
  ASSERT_TRUE(sequence.prepare(1));
  const SpanView span = sequence.span(0);
  const std::span<const PageId> pages = span.pages[group];
  const int64_t first = std::max<int64_t>(span.first_position - window + 1, 0);
  for (int64_t p = first; p <= span.first_position; ++p) {
    ASSERT_NE(pages[static_cast<size_t>(p / kPagePositions)], kNoPage) << p << " from " << span.first_position;
  }
  sequence.abandon();
}

TEST(SequenceState, HoldsOnlyThePagesThatItsWindowsStillSee) {
  StateLayout layout;
  layout.add_page("all", Retention::kForever, 10);
  const PageField one = layout.add_page("window", Retention::kWindow, 10, kWindow);
  EXPECT_EQ(layout.add_page("window", Retention::kWindow, 10, kWindow).group, one.group);
  const PageField other = layout.add_page("other", Retention::kWindow, 10, 1);
  EXPECT_NE(other.group, one.group);
  StatePools pools(layout, {.pages = 70});
  SequenceState sequence(pools, 0);
  std::mt19937 random(2);
  while (sequence.length() < 1000) {
    advance(sequence, static_cast<int32_t>(1 + random() % 60));
    const int64_t length = sequence.length();
    EXPECT_EQ(pools.pages(0).held_count(), (length + 15) / 16);
    EXPECT_EQ(pools.pages(one.group).held_count(),
              (length + 15) / 16 - std::max<int64_t>(length - kWindow + 1, 0) / kPagePositions);
    EXPECT_EQ(pools.pages(other.group).held_count(), length % 16 == 0 ? 0 : 1);
    expect_window(sequence, one.group, kWindow);
  }
}

TEST(SequenceState, RollsBackToAnyPositionThatWasNotAcceptedAndElseToTheBackbone) {
  StateLayout layout;
  const int group = layout.add_page("window", Retention::kWindow, 10, kWindow).group;
  StatePools pools(layout, {.pages = 100});
  for (int64_t accepted = 1; accepted < 130; accepted += 3) {
    SequenceState sequence(pools, 0);
    advance(sequence, static_cast<int32_t>(accepted));
    advance(sequence, 90, false);
    for (const int64_t target : {accepted + 50, accepted + 7, accepted}) {
      EXPECT_EQ(sequence.rollback(target), target);
      expect_window(sequence, group, kWindow);
    }
  }
  SequenceState none(pools, 0), spaced(pools, 64);
  advance(none, 300);
  advance(spaced, 300);
  EXPECT_EQ(none.rollback(296), 296) << "of the page that holds the end of the window, more rows are there";
  EXPECT_EQ(none.rollback(200), 0);
  for (const auto& [target, found] : {std::pair{296, 296}, {240, 192}, {191, 191}, {170, 128}, {50, 0}}) {
    EXPECT_EQ(spaced.rollback(target), found);
    expect_window(spaced, group, kWindow);
  }
}

TEST(SequenceState, WindowsAndAnchorsGoBackTogether) {
  StateLayout layout = hybrid_layout();
  const int group = layout.add_page("window", Retention::kWindow, 10, kWindow).group;
  StatePools pools(layout, {.pages = 100, .journal_pages = 4, .anchors = 20});
  std::mt19937 random(4);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t spacing = trial % 2 * 64;
    SequenceState sequence(pools, spacing);
    advance(sequence, static_cast<int32_t>(1 + random() % 200));
    const int64_t accepted = sequence.length();
    advance(sequence, static_cast<int32_t>(1 + random() % 16), false);
    EXPECT_EQ(sequence.rollback(accepted), accepted);
    expect_window(sequence, group, kWindow);
    const int64_t deep = static_cast<int64_t>(random()) % accepted;
    const int64_t found = sequence.rollback(deep);
    EXPECT_LE(found, deep);
    if (spacing > 0) {
      EXPECT_GE(found, deep / spacing * spacing);
    }
    expect_window(sequence, group, kWindow);
  }
  EXPECT_EQ(pools.pages(group).held_count(), 0);
}

TEST(SequenceState, RandomLivesLeaveThePoolsFull) {
  StateLayout layout = hybrid_layout();
  layout.add_page("window", Retention::kWindow, 10, kWindow);
  StatePools pools(layout, {.pages = 24, .journal_pages = 8, .anchors = 6});
  std::mt19937 random(3);
  int refused = 0, rolled_back = 0;
  std::vector<std::unique_ptr<SequenceState>> live;
  for (int i = 0; i < 10000; ++i) {
    const size_t pick = random() % 4;
    if (live.size() < 4 && pick == 0) {
      live.push_back(std::make_unique<SequenceState>(pools, random() % 2 * 32));
    } else if (!live.empty()) {
      const size_t s = random() % live.size();
      if (pick == 1) {
        live.erase(live.begin() + static_cast<ptrdiff_t>(s));
      } else if (pick == 2 && live[s]->length() > 0) {
        live[s]->rollback(static_cast<int64_t>(random()) % live[s]->length());
        ++rolled_back;
      } else if (live[s]->prepare(static_cast<int32_t>(1 + random() % 70))) {
        if (random() % 8 == 0) {
          live[s]->abandon();
        } else {
          live[s]->commit();
          if (random() % 2 == 0) live[s]->accept(live[s]->length());
        }
      } else {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(rolled_back, 100);
  live.clear();
  for (int group = 0; group < 3; ++group) EXPECT_EQ(pools.pages(group).free_count(), pools.pages(group).count());
  EXPECT_EQ(pools.anchors().free_count(), pools.anchors().count());
}

}  // namespace
}  // namespace weir
