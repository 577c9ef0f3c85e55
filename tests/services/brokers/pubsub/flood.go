package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	pb "cloud.google.com/go/pubsub/apiv1/pubsubpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const batch = 100

// A flood sends each stream as many messages as the end of its subscription's name says, in batches and as fast as they
// are acknowledged; pstest sends one in an answer, and looks for more every ten milliseconds. For measuring clients.
type flood struct {
	pb.UnimplementedSubscriberServer
	data        []byte
	mutex       sync.Mutex
	changed     *sync.Cond
	outstanding map[string]int
}

func serveFlood(port, size int) {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		panic(err)
	}
	data := []byte(`{"n": 1, "pad": "` + strings.Repeat("x", size) + `"}`)
	service := &flood{data: data, outstanding: map[string]int{}}
	service.changed = sync.NewCond(&service.mutex)
	server := grpc.NewServer()
	pb.RegisterSubscriberServer(server, service)
	panic(server.Serve(listener))
}

func (service *flood) StreamingPull(stream pb.Subscriber_StreamingPullServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	name := first.Subscription
	total, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:])
	if err != nil {
		return err
	}
	limit := int(first.MaxOutstandingMessages)
	if limit == 0 {
		limit = 1000
	}
	closed := make(chan struct{})
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				close(closed)
				return
			}
		}
	}()
	for sent := 0; sent < total; {
		service.mutex.Lock()
		for service.outstanding[name] >= limit {
			service.changed.Wait()
		}
		count := limit - service.outstanding[name]
		service.mutex.Unlock()
		if count > batch {
			count = batch
		}
		if count > total-sent {
			count = total - sent
		}
		answer := &pb.StreamingPullResponse{}
		for ; count > 0; count-- {
			id := strconv.Itoa(sent)
			sent++
			answer.ReceivedMessages = append(answer.ReceivedMessages, &pb.ReceivedMessage{
				AckId: id + strings.Repeat("x", 176-len(id)),
				Message: &pb.PubsubMessage{
					Data: service.data, MessageId: id, PublishTime: timestamppb.Now(),
					Attributes: map[string]string{"source": "flood"},
				},
			})
		}
		service.note(name, len(answer.ReceivedMessages))
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
	<-closed
	return nil
}

func (service *flood) Acknowledge(_ context.Context, request *pb.AcknowledgeRequest) (*emptypb.Empty, error) {
	service.note(request.Subscription, -len(request.AckIds))
	return &emptypb.Empty{}, nil
}

func (service *flood) ModifyAckDeadline(context.Context, *pb.ModifyAckDeadlineRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

func (service *flood) note(name string, count int) {
	service.mutex.Lock()
	defer service.mutex.Unlock()
	service.outstanding[name] += count
	service.changed.Broadcast()
}
