//! Opening and offering: files, exports, regions and channels of a client.

use std::rc::Rc;
use std::sync::Arc;

use piped_config::PEERS_MAX;
use piped_control::fault::{Asked, OpenFault};
use piped_control::holdings::Right;
use piped_control::offers::Kind;
use piped_control::parties::Asker;
use piped_core::access::{Access, Creation, OpenKind};
use piped_core::ids::{HandleId, RegionId};
use piped_core::status::Status;
use piped_engine::command::{Command, OpenRequest};
use piped_ring::Segment;
use piped_ring::handshake::Audience;

use super::named::Named;
use super::{Client, Held, Own, gone};
use crate::closing::HeldFile;
use crate::control::{Control, OpenTicket};
use crate::limits::FILES_PER_OPEN;
use crate::open::below::check_path;
use crate::open::{RegionSource, Source, file, no_room};
use crate::shard::message::Message;

/// A handle, its alignment for direct I/O (0 for none), its length in bytes.
pub(super) type Opened = Result<(HandleId, u32, u64), OpenFault>;

/// An open that a peer was asked for.
pub(super) struct Asking {
    handle: HandleId,
    right: Right,
    asked: Asked,
}

/// Memory of a region on its way to a shard. If its owner and the opening client leave meanwhile,
/// it is given back from here.
struct Underway {
    control: Rc<Control>,
    memory: Option<Arc<Segment>>,
}

impl Underway {
    fn new(control: &Rc<Control>, source: &Source) -> Self {
        let memory = match source {
            Source::Region(region) => Some(Arc::clone(&region.memory)),
            Source::File(_) | Source::Directory(_) | Source::Channel(_) => None,
        };
        Self { control: Rc::clone(control), memory }
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        // Nobody waits for that.
        drop(self.control.give_back(self.memory.take(), None));
    }
}

impl Client {
    pub(super) async fn open_file(
        &mut self,
        direct: Option<HeldFile>,
        buffered: HeldFile,
        access: Access,
    ) -> Opened {
        let opened = self.blocking(move || file::inspect(direct, buffered, access)).await?;
        self.install(Source::File(opened), Right::Passed(access)).await
    }

    /// Opens what lies below an export of this node: a file, which may be made, or (`create` is
    /// none) a directory.
    pub(super) async fn open_export(
        &mut self,
        (export, path): (String, Vec<u8>),
        access: Access,
        create: Option<Creation>,
    ) -> Opened {
        let (exports, who) = (self.control.exports(), self.who.clone());
        let root = exports.grants().root(&export);
        let right = Right::File { export: export.clone(), path: path.clone(), access, root };
        let room = self.files.try_room(if create.is_some() { FILES_PER_OPEN } else { 1 });
        let room = room.ok_or_else(no_room)?;
        let open = move || {
            let who = Asker::User(&who);
            match create {
                Some(create) => {
                    let opened = exports.open(who, &export, &path, access, create, room);
                    opened.map(Source::File)
                }
                None => {
                    let opened = exports.open_directory(who, &export, &path, access, room);
                    opened.map(Source::Directory)
                }
            }
        };
        let opened = self.blocking(open).await?;
        self.install(opened, right).await
    }

    pub(super) async fn export_region(
        &mut self,
        name: &str,
        (segment, offset, length): (u32, u64, u64),
        access: Access,
        audience: Audience,
    ) -> Opened {
        let own = self.segments.get(segment as usize).and_then(Option::as_ref);
        let Own { memory, .. } = own.ok_or_else(|| {
            OpenFault::new(Status::BadBuffer, format!("the arena has no segment {segment}"))
        })?;
        if memory.is_loose() && access.atomic {
            let text = "memory that is lent without seals has no atomic words; export it without \
                        atomic access, or seal the memory";
            return Err(OpenFault::new(Status::Unsupported, text));
        }
        let source = RegionSource {
            region: RegionId(0),
            owner: self.id,
            home: self.shards.home(),
            segment,
            memory: Arc::clone(memory),
            offset,
            length,
            access,
            audience,
        };
        self.check_offer(Kind::Region)?;
        let bytes = source.memory.len();
        let source = self.control.core.borrow_mut().offer_region(name, source, bytes)?;
        let region = source.region;
        let right = Right::OfferedRegion { name: name.to_owned(), region, access };
        let installed = self.install(Source::Region(source), right).await;
        match installed {
            Ok((handle, ..)) => {
                self.handles.insert(handle.0, Held::Region(region, segment));
                self.note();
            }
            Err(_) => {
                // Others may have opened it already.
                self.control.withdraw(region).await;
            }
        }
        installed
    }

    pub(super) async fn offer_channel(&mut self, name: &str) -> Opened {
        self.check_offer(Kind::Channel)?;
        let home = self.shards.home();
        let source = self.control.core.borrow_mut().offer_channel(name, self.id, home)?;
        let right = Right::OfferedChannel { name: name.to_owned(), channel: source.channel };
        let installed = self.install(Source::Channel(source), right).await;
        match installed {
            Ok((handle, ..)) => {
                self.handles.insert(handle.0, Held::Channel(source.channel));
                self.note();
            }
            Err(_) => self.control.core.borrow_mut().withdraw_channel(source.channel),
        }
        installed
    }

    /// Whether there may be one more region or channel of this session.
    fn check_offer(&self, kind: Kind) -> Result<(), OpenFault> {
        let refused = |text| OpenFault::new(Status::WouldBlock, text);
        let limits = self.control.limiter.limits();
        self.control.core.borrow().check_offer(self.id, kind, &limits).map_err(refused)
    }

    pub(super) async fn open_region(&mut self, name: &str, access: Access) -> Opened {
        let source = self.control.core.borrow().find_region(name, access, &self.who)?;
        let region = source.region;
        let right = Right::Region { name: name.to_owned(), region, access };
        let opened = self.install(Source::Region(source), right).await?;
        if self.control.core.borrow().regions().has(region) {
            return Ok(opened);
        }
        // Withdrawn while it was opened: say it again, so that these shards have heard it last.
        self.forget(opened.0.0);
        self.control.core.borrow_mut().leave(self.place(opened.0));
        self.shards.tell_each(&Command::RevokeRegion { region }).await;
        Err(OpenFault::new(Status::Gone, format!("the region `{name}` was just withdrawn")))
    }

    pub(super) async fn open_remote(&mut self, peer: &str, open: OpenRequest) -> Opened {
        let (asking, mut ticket) = self.begin_remote(peer, open).await?;
        let outcome = tokio::time::timeout(self.open_patience(), ticket.outcome()).await;
        self.end_remote(asking, outcome.ok()).await
    }

    /// Asks a peer to open something.
    pub(super) async fn begin_remote(
        &mut self,
        peer: &str,
        open: OpenRequest,
    ) -> Result<(Asking, OpenTicket), OpenFault> {
        let id = self.control.peer(peer).ok_or_else(|| {
            let core = self.control.core.borrow();
            let fix = match piped_config::nearest(peer, core.peers().names()) {
                _ if Named::read(peer).is_some() => {
                    "only a file that is read can be of several nodes".to_owned()
                }
                _ if core.peers().leaves_out(peer, core.discovery()) => format!(
                    "it was found, and {PEERS_MAX} others are known: give it an entry in \
                     [peers.{peer}], which goes before them"
                ),
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("name it in [peers.{peer}] address"),
            };
            let text = format!("there is no peer `{peer}`; {fix}");
            OpenFault::new(Status::NotFound, text)
        })?;
        if open.name.is_empty() {
            // A frame without a name is no frame: the peer would close the connection, and others
            // have requests on it.
            let text =
                format!("an open at `{peer}` needs the name of an export, region or channel");
            return Err(OpenFault::new(Status::Invalid, text));
        }
        let is_export = open.kind == OpenKind::Directory && open.path.is_empty();
        if matches!(open.kind, OpenKind::File | OpenKind::Directory) && !is_export {
            // The peer would refuse it as well, and has no way to say why.
            check_path(&open.path)?;
        }
        let handle = self.new_handle()?;
        let right = Right::Remote {
            peer: peer.to_owned(),
            kind: open.kind,
            name: open.name.clone(),
            path: open.path.clone(),
            access: open.access,
        };
        let asked = Asked::of(peer, &open);
        let ticket = self.control.expect_open();
        let (session, number) = (self.id, ticket.number);
        let command = Command::OpenRemote { ticket: number, session, handle, peer: id, open };
        self.shards.mailbox().send(Message::Engine(command)).await.map_err(gone)?;
        Ok((Asking { handle, right, asked }, ticket))
    }

    /// What a peer said to an open; none if it has said nothing for as long as it may.
    pub(super) async fn end_remote(
        &mut self,
        asking: Asking,
        outcome: Option<Result<u64, Status>>,
    ) -> Opened {
        let Asking { handle, right, asked } = asking;
        let status = match outcome {
            Some(Ok(length)) => {
                if let Err(fault) = self.shards.point(handle).await {
                    self.drop_handle(handle).await;
                    return Err(fault);
                }
                self.enter(handle, right).await?;
                return Ok((handle, 0, length));
            }
            Some(Err(status)) => status,
            None => Status::DeadlineExceeded,
        };
        self.drop_handle(handle).await;
        Err(asked.refused(status))
    }

    pub(super) async fn install(&mut self, source: Source, right: Right) -> Opened {
        let is_open = matches!(source, Source::File(_) | Source::Directory(_));
        if is_open {
            let refused = |text| OpenFault::new(Status::WouldBlock, text);
            for shard in self.shards.all() {
                self.control.check_files(self.who.uid, *shard).map_err(refused)?;
            }
        }
        let handle = self.new_handle()?;
        if is_open {
            self.handles.insert(handle.0, Held::File);
            self.open_files += 1;
            self.note();
        }
        let (length, alignment) = match &source {
            Source::File(file) => {
                // Reads of less may go direct, too; writes do not.
                let alignment =
                    file.direct.as_ref().map_or(0, |(_, alignment)| alignment.offset.max(4096));
                (file.length, alignment)
            }
            Source::Region(region) => (region.length, 0),
            Source::Directory(_) | Source::Channel(_) => (0, 0),
        };
        let _underway = Underway::new(&self.control, &source);
        self.control.keeper.meet(&self.control, &source).await;
        if let Err(fault) = self.shards.install(handle, source, &self.files).await {
            self.drop_handle(handle).await;
            return Err(fault);
        }
        self.enter(handle, right).await?;
        Ok((handle, alignment, length))
    }
}
