# frozen_string_literal: true

# The jobs of `python -m benchmarks.foreign` for Sidekiq: `sidekiq -r ./jobs.rb` runs them.

require "sidekiq"

redis = { url: "redis://127.0.0.1:#{ENV.fetch("BENCH_PORT")}/0" }
Sidekiq.configure_server { |config| config.redis = redis }
Sidekiq.configure_client { |config| config.redis = redis }
Sidekiq.logger.level = Logger::WARN

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
end

# Counts executions in memory and writes (count, first, last) to a file: every hundred times, and at each
# execution after the last expected one.
module Counts
  EVERY = 100
  JOBS = Integer(ENV.fetch("BENCH_JOBS", "0"))
  @lock = Mutex.new
  @count = 0

  def self.add
    time = now
    @lock.synchronize do
      @count += 1
      @first ||= time
      write(time) if @count == 1 || (@count % EVERY).zero? || @count >= JOBS
    end
  end

  def self.write(time)
    @file ||= file("count")
    @file.pwrite([@count, @first, time].pack("q<3"), 0)
  end

  def self.instant(sent)
    time = now
    @lock.synchronize do
      @instants ||= file("instants")
      @instants.syswrite([sent, time].pack("q<2"))
    end
  end

  def self.file(kind)
    File.open(File.join(ENV.fetch("BENCH_DIR"), "#{kind}.#{Process.pid}"), File::RDWR | File::CREAT, 0o600)
  end
end

class Noop
  include Sidekiq::Job

  def perform
    Counts.add
  end
end

class Stamp
  include Sidekiq::Job

  def perform(sent)
    Counts.instant(sent)
  end
end
