//! The numbers of messages, of requests and of replies. They never change.

pub(super) const HELLO: u16 = 1;
pub(super) const ADD_QUEUE: u16 = 2;
pub(super) const GROW_ARENA: u16 = 3;
pub(super) const OPEN_FILE: u16 = 4;
pub(super) const OPEN_EXPORT: u16 = 5;
pub(super) const EXPORT_REGION: u16 = 6;
pub(super) const OPEN_REGION: u16 = 7;
pub(super) const CLOSE_HANDLE: u16 = 8;
pub(super) const OFFER_CHANNEL: u16 = 9;
pub(super) const OPEN_CHANNEL: u16 = 10;
pub(super) const PATH_COSTS: u16 = 11;
pub(super) const LEND: u16 = 12;
pub(super) const TAKE_BACK: u16 = 13;
pub(super) const OPEN_DIRECTORY: u16 = 14;

pub(super) const WELCOME: u16 = 101;
pub(super) const QUEUE: u16 = 102;
pub(super) const SEGMENT: u16 = 103;
pub(super) const OPENED: u16 = 104;
pub(super) const DONE: u16 = 105;
pub(super) const REFUSED: u16 = 106;
pub(super) const COSTS: u16 = 107;
pub(super) const LENT: u16 = 108;
