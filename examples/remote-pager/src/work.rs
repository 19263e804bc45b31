//! The demonstration's work: it takes bytes, and knows nothing of where they come from.

/// Bytes of a record, a number with its least byte first.
pub(crate) const RECORD: usize = 8;

/// Sorts the records; a rest that is no whole record stays.
pub(crate) fn sort(bytes: &mut [u8]) -> usize {
    let (records, _) = bytes.as_chunks_mut::<RECORD>();
    records.sort_unstable_by_key(|record| u64::from_le_bytes(*record));
    records.len()
}

/// The place of a record in sorted ones, or where it would be.
pub(crate) fn search(bytes: &[u8], key: u64) -> Result<usize, usize> {
    let (records, _) = bytes.as_chunks::<RECORD>();
    records.binary_search_by_key(&key, |record| u64::from_le_bytes(*record))
}

/// The records' sum, and whether they are in order.
pub(crate) fn scan(bytes: &[u8]) -> (u64, bool) {
    let (records, _) = bytes.as_chunks::<RECORD>();
    let mut last = 0;
    records.iter().fold((0, true), |(sum, sorted), record| {
        let number = u64::from_le_bytes(*record);
        let in_order = sorted && last <= number;
        last = number;
        (number.wrapping_add(sum), in_order)
    })
}
