"""Values about watchers that the streams and the store share: guarantees, lane positions, parked messages."""
