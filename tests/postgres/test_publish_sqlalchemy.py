"""Publishing on SQLAlchemy's Session, scoped_session and Connection, over psycopg and psycopg2."""

from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from aftercommit.errors import UnsupportedConnection
from aftercommit.testing.outbox_suite import PublishHarness, PublishSuite
from aftercommit.testing.publish_stage import OUTBOX, SCOPE, SuiteOrderPlaced

pytestmark = pytest.mark.newest


def engine_for(dsn: str, driver: str = "psycopg", **options: Any) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(dsn.replace("postgresql:", f"postgresql+{driver}:"), **options)


class SqlalchemyHarness(PublishHarness):
    """What a Session and a Connection have in common."""

    driver = "psycopg"
    work: Any

    @property
    def target(self) -> Any:
        return self.work

    def start(self, engine: sqlalchemy.Engine) -> None:
        self.work = engine.connect()

    def open(self) -> None:
        self.engine = engine_for(self.dsn, self.driver)
        self.nested: list[Any] = []
        self.start(self.engine)

    def open_outside_transaction(self) -> None:
        self.engine = engine_for(self.dsn, self.driver, isolation_level="AUTOCOMMIT")
        self.start(self.engine)

    def begin(self) -> None:
        self.work.begin()

    def commit(self) -> None:
        self.work.commit()

    def rollback(self) -> None:
        self.work.rollback()

    def savepoint(self) -> None:
        self.nested.append(self.work.begin_nested())

    def release_savepoint(self) -> None:
        self.nested.pop().commit()

    def rollback_to_savepoint(self) -> None:
        self.nested.pop().rollback()

    def execute(self, statement: str) -> None:
        self.work.execute(sqlalchemy.text(statement))

    def close(self) -> None:
        self.work.close()
        self.engine.dispose()


class SessionHarness(SqlalchemyHarness):
    def start(self, engine: sqlalchemy.Engine) -> None:
        self.work = Session(engine)


class ScopedSessionHarness(SqlalchemyHarness):
    def start(self, engine: sqlalchemy.Engine) -> None:
        self.work = scoped_session(sessionmaker(engine))


class AutobegunConnection(SqlalchemyHarness):
    """Nobody says begin: SQLAlchemy does so with the first statement, which may be ours."""

    def begin(self) -> None:
        pass


class Psycopg2Session(SessionHarness):
    driver = "psycopg2"


class Psycopg2Connection(SqlalchemyHarness):
    driver = "psycopg2"


class TestConnection(PublishSuite):
    harness = SqlalchemyHarness


class TestAutobegunConnection(PublishSuite):
    harness = AutobegunConnection


class TestSession(PublishSuite):
    harness = SessionHarness


class TestScopedSession(PublishSuite):
    harness = ScopedSessionHarness


class TestPsycopg2Session(PublishSuite):
    harness = Psycopg2Session


class TestPsycopg2Connection(PublishSuite):
    harness = Psycopg2Connection


class Base(DeclarativeBase):
    metadata = sqlalchemy.MetaData(schema="publish_suite")


class Business(Base):
    __tablename__ = "business"

    note: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture
def engine(publish_database):
    engine = engine_for(publish_database)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("delete from publish_suite.business"))
    yield engine
    engine.dispose()


def written(session: Session) -> int:
    query = sqlalchemy.text("select count(*) from publish_suite.business")
    return int(session.connection().execute(query).scalar_one())


def test_what_the_session_has_yet_to_write_is_written_before_the_event(engine):
    """The event takes its place in the order of its aggregate while the writer holds the aggregate's row."""
    with Session(engine) as session:
        session.add(Business(note="pending"))
        OUTBOX.publish(session, SuiteOrderPlaced("o"), **SCOPE)
        assert written(session) == 1


def test_a_session_told_not_to_flush_by_itself_is_obeyed(engine):
    with Session(engine) as session:
        session.add(Business(note="pending"))
        with session.no_autoflush:
            OUTBOX.publish(session, SuiteOrderPlaced("o"), **SCOPE)
            assert written(session) == 0


def test_a_flush_listener_may_publish(engine):
    published = []

    def publish_new_rows(session: Session, *_: object) -> None:
        for row in session.new:
            published.append(OUTBOX.publish(session, SuiteOrderPlaced(row.note), **SCOPE).event_id)

    with Session(engine) as session:
        sqlalchemy.event.listen(session, "before_flush", publish_new_rows)
        session.add(Business(note="listened"))
        session.commit()
        found = session.execute(
            sqlalchemy.text("select aggregate_id from publish_suite.outbox where id = :id"), {"id": published[0]}
        )
        assert (len(published), found.scalar_one()) == (1, "listened")


def test_another_database_is_refused_by_name():
    sqlite = sqlalchemy.create_engine("sqlite://")
    with sqlite.connect() as connection, pytest.raises(UnsupportedConnection, match="pysqlite"):
        OUTBOX.publish(connection, SuiteOrderPlaced("o"), **SCOPE)
    sqlite.dispose()


def test_an_engine_is_not_a_connection(engine):
    with pytest.raises(UnsupportedConnection, match="Engine"):
        OUTBOX.publish(engine, SuiteOrderPlaced("o"), **SCOPE)


class Unmade(Base):
    __tablename__ = "never_made"
    number: Mapped[int] = mapped_column(primary_key=True)


def test_an_error_about_another_table_that_the_session_writes_first_is_the_callers_own(engine: Any) -> None:
    with Session(engine) as session:
        session.add(Unmade(number=1))
        with pytest.raises(sqlalchemy.exc.ProgrammingError, match="never_made"):
            OUTBOX.publish(session, SuiteOrderPlaced("o-1"), **SCOPE)
