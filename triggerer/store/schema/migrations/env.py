"""Alembic's entry: runs the scripts on the connection that `triggerer.store.schema.migrate` opened."""

from alembic import context

from triggerer.store.schema.models import Base

if context.is_offline_mode():
    context.configure(dialect_name="postgresql", target_metadata=Base.metadata, literal_binds=True)
else:
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=Base.metadata,
        # Alembic opens no transactions of its own. The caller commits, or runs the script outside of transactions.
        transaction_per_migration=False,
        render_as_batch=False,
    )

context.run_migrations()
