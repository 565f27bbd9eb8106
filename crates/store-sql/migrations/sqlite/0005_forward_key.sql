-- Which key the upstream was sent is settled when a life begins: whoever asks about it later must ask by that one.
--
-- Rows of before do not say (0), and go by their route's present policy.
ALTER TABLE record ADD COLUMN forward_key INTEGER NOT NULL DEFAULT 0; -- 0 not said, 1 as-is, 2 derived, 3 none
