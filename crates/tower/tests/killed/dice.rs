//! Numbers that come again with the same seed, and what clients of a service that is killed make of them.

/// The same numbers again for the same seed (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    /// Which key is sent next, where so many were: mostly a fresh one; or one of the last `running`, which may well be running; or any.
    pub(crate) fn key(&mut self, sent: u64, running: u64) -> u64 {
        match self.roll(10) {
            0..3 => sent.saturating_sub(1 + self.roll(running)),
            3 => self.roll(sent + 1),
            _ => sent,
        }
    }
}
